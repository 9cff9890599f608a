"""Attention modules of transformers that never call the attention function, made to call it.

Each is wrapped by a module that computes queries, keys and values with the original's own parts and hands them over.
What the function needs of a step does not come down to such modules: it waits in a hook that all of them hold. It waits
there, too, for models that do call the function, but leave out what their layers were given for it.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

PATCHED_NAME, HOOKED_NAME = "pagemill_patched", "pagemill_hooked"
# Of transformers 5.24's two implementations for Falcon, eager adds the ALiBi bias twice; sdpa gives what Falcon's
# authors published.
REFERENCES = {"FalconAttention": "sdpa"}  # others: eager

Attend = Callable[..., tuple[Tensor, None]]  # an attention function of transformers' registry, bound to a step


class AttentionHook:
    """Where the attention function of the current pass waits for modules that do not get it otherwise."""

    def __init__(self) -> None:
        self.attend: Attend | None = None

    @contextmanager
    def attending(self, attend: Attend) -> Iterator[None]:
        """Let modules call `attend`."""
        self.attend = attend
        try:
            yield
        finally:
            self.attend = None

    def call(self, *arguments: Any, **options: Any) -> tuple[Tensor, None]:
        """Attention function in transformers' registry: that of the current pass."""
        assert self.attend is not None, "a hooked model runs within a step only"
        return self.attend(*arguments, **options)


class PatchedAttention(nn.Module):
    """An attention module in the place of the original, which it holds."""

    def __init__(self, original: Any, hook: AttentionHook) -> None:
        super().__init__()
        self.original = original
        self.layer_idx: int = self.index_of(original)
        self._hook = hook

    @staticmethod
    def index_of(original: Any) -> int:
        """Return which layer the original is of."""
        index: int = original.layer_idx
        return index

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        slopes: Tensor | None = None,
        window: int | None = None,
    ) -> Tensor:
        """query: [1, num_heads, T, head_dim]; key, value: [1, num_kv_heads, T, head_dim]. Returns [1, T, features]."""
        options = {"scaling": scale, "slopes": slopes, "sliding_window": window}
        output, _ = self._hook.call(self, query, key, value, None, **options)
        return output.flatten(2)


class BloomAttention(PatchedAttention):
    """ALiBi over fused projections, a head's query, key and value side by side."""

    def __init__(self, original: Any, hook: AttentionHook) -> None:
        super().__init__(original, hook)
        self.slopes = nn.Buffer(alibi_slopes(original.num_heads, original.dense.weight.device))

    def forward(self, hidden_states: Tensor, residual: Tensor, **_: object) -> tuple[Tensor, None]:
        module = self.original
        query, key, value = module._reshape(module.query_key_value(hidden_states))
        return module.dense(self.attend(query, key, value, module.inv_norm_factor, self.slopes)) + residual, None


class FalconAttention(PatchedAttention):
    """Rotary or ALiBi, over fused projections of each KV head's queries, its key and its value."""

    def __init__(self, original: Any, hook: AttentionHook) -> None:
        super().__init__(original, hook)
        self.slopes = nn.Buffer(_falcon_slopes(original))

    def forward(
        self, hidden_states: Tensor, alibi: Tensor | None, *, position_embeddings: tuple[Tensor, Tensor], **_: object
    ) -> tuple[Tensor, None]:
        module = self.original
        num_tokens, per_kv_head = hidden_states.shape[1], module.num_heads // module.num_kv_heads
        fused = module.query_key_value(hidden_states)
        heads = fused.view(1, num_tokens, module.num_kv_heads, per_kv_head + 2, module.head_dim)
        query = heads[..., :-2, :].flatten(2, 3).transpose(1, 2)
        key, value = heads[..., -2, :].transpose(1, 2), heads[..., -1, :].transpose(1, 2)
        if alibi is None:
            query, key = _rotated(query, *position_embeddings), _rotated(key, *position_embeddings)
        slopes = None if alibi is None else self.slopes
        return module.dense(self.attend(query, key, value, module.inv_norm_factor, slopes)), None


class GPTNeoAttention(PatchedAttention):
    """Scores as they are, not scaled; layers that are called local have a window."""

    def __init__(self, original: Any, hook: AttentionHook) -> None:
        super().__init__(original, hook)
        self._window = original.config.window_size if original.attention_type == "local" else None
        del original.bias  # its mask, as large as the context squared

    @staticmethod
    def index_of(original: Any) -> int:
        index: int = original.layer_id
        return index

    def forward(self, hidden_states: Tensor, **_: object) -> tuple[Tensor, None]:
        module = self.original
        query, key, value = (
            projection(hidden_states).view(1, -1, module.num_heads, module.head_dim).transpose(1, 2)
            for projection in (module.q_proj, module.k_proj, module.v_proj)
        )
        return module.out_proj(self.attend(query, key, value, 1.0, window=self._window)), None


class MptAttention(PatchedAttention):
    """ALiBi over fused projections, all queries before all keys before all values."""

    def __init__(self, original: Any, hook: AttentionHook) -> None:
        super().__init__(original, hook)
        self.slopes = nn.Buffer(alibi_slopes(original.n_heads, original.Wqkv.weight.device))

    def forward(self, hidden_states: Tensor, **_: object) -> tuple[Tensor, None]:
        module = self.original
        fused = module.Wqkv(hidden_states)
        if module.clip_qkv:
            fused = fused.clamp(-module.clip_qkv, module.clip_qkv)
        query, key, value = fused.view(1, -1, 3, module.n_heads, module.head_dim).permute(2, 0, 3, 1, 4)
        return module.out_proj(self.attend(query, key, value, module.softmax_scale, self.slopes)), None


PATCHES: dict[str, Callable[[Any, AttentionHook], PatchedAttention]] = {
    "BloomAttention": BloomAttention,
    "FalconAttention": FalconAttention,
    "GPTNeoSelfAttention": GPTNeoAttention,
    "MptAttention": MptAttention,
}


def patch_attention(model: PreTrainedModel) -> AttentionHook | None:
    """Wrap the attention modules that need it, in place. Returns their hook; None where there are none."""
    hook, found = AttentionHook(), False
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (patch := PATCHES.get(type(child).__name__)) is not None:
                setattr(parent, name, patch(child, hook))
                found = True
    if not found:
        return None
    model.config._attn_implementation = PATCHED_NAME
    return hook


def hook_attention(model: PreTrainedModel) -> AttentionHook:
    """Let a model's modules call the attention function of a hook, which is its own: there is one for each model."""
    hook = AttentionHook()
    name = f"{HOOKED_NAME}_{id(hook)}"
    AttentionInterface.register(name, hook.call)
    model.set_attn_implementation(name)
    return hook


@contextmanager
def reference_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let a model that is not patched yet attend by the implementation of transformers' that says what is right, with
    the biases of Falcon's ALiBi as they are before transformers rounds them.

    The definitions that need a patch take the implementation from their configuration only.
    """
    names = {type(module).__name__ for module in model.modules()}
    patched = next((name for name in PATCHES if name in names), None)
    if patched is None:
        model.set_attn_implementation("eager")
    else:
        model.config._attn_implementation = REFERENCES.get(patched, "eager")
    falcons = [module for module in model.modules() if type(module).__name__ == "FalconAttention"]
    handles = [module.register_forward_pre_hook(_with_exact_biases, with_kwargs=True) for module in falcons]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _with_exact_biases(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the arguments of a Falcon layer with ALiBi biases in its mask that are slope times position, unrounded.

    transformers multiplies in bfloat16, which has eight bits: slopes that are no powers of two, as of more than eight
    heads, give rounded biases from the first tokens on, and any slope from the 257th.
    """
    if options["alibi"] is None:
        return arguments, options
    mask: Tensor = options["attention_mask"]  # [1, num_heads, T, num_keys]: biases, or the least number
    biases = _falcon_slopes(module)[:, None, None] * torch.arange(mask.shape[-1], device=mask.device)
    exact = torch.where(mask == torch.finfo(mask.dtype).min, mask, biases.to(mask.dtype))
    return arguments, {**options, "attention_mask": exact}


def _falcon_slopes(module: Any) -> Tensor:
    """Return the slopes of a Falcon layer's scores, [num_heads], float32: Falcon scales the biases like the scores, and
    its authors keep the slopes in bfloat16."""
    slopes = alibi_slopes(module.num_heads, module.dense.weight.device).bfloat16().float()
    return slopes * float(module.inv_norm_factor)


def alibi_slopes(num_heads: int, device: torch.device) -> Tensor:
    """Return the slopes of ALiBi, [num_heads], float32 (Press et al. 2022).

    They fall geometrically to 2^-8. Where the number of heads is no power of two, the rest takes every other slope of
    twice as many heads.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-8 * (2 * i + 1) / (2 * power)) for i in range(num_heads - power)]
    return torch.tensor(slopes + between, dtype=torch.float32, device=device)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [1, heads, T, head_dim]; cos, sin: [1, T, head_dim]. A head's halves are the two sides of each rotation."""
    first, second = x.chunk(2, dim=-1)
    return x * cos.unsqueeze(1) + torch.cat((-second, first), dim=-1) * sin.unsqueeze(1)


def _attend_by_hook(*_: object, **__: object) -> tuple[Tensor, None]:
    raise AssertionError("a patched module calls the attention function through its hook")


def _no_mask(*, device: torch.device, **_: object) -> Tensor:
    """Return a mask of one element for definitions that do not expect to get none; patched modules ignore it."""
    return torch.zeros(1, 1, 1, 1, device=device)


AttentionInterface.register(PATCHED_NAME, _attend_by_hook)
AttentionMaskInterface.register(PATCHED_NAME, _no_mask)
