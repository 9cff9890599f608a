"""The gate at load: a model is served only if the paged path gives what its own eager attention gives."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention_layers import UnsupportedModel
from engine.attention_patches import reference_attention
from engine.kv_cache import KVCache
from engine.linears import Numerics, Weights
from engine.paged_model import PagedModel, max_model_len
from engine.probing import plan_of, probe_request
from engine.step_plan import ScheduledRequest, SchedulerOutput

MOST_TOKENS = 24  # the more there are, the farther rounding alone leads a model of experts in bfloat16 astray
BLOCK_SIZE = 16
FIRST_CHUNK = 13  # ends inside a block, so that the second chunk reads a partly filled one
# Largest difference allowed, as a share of the logits' standard deviation. A model whose attention is not ours, or not
# wholly ours, is off by about 1; rounding in the narrow types stays well below these.
TOLERANCE = {torch.float32: 0.002, torch.float16: 0.1, torch.bfloat16: 0.4}

INT8_TOLERANCE = 0.5


def self_test(model: PagedModel, expected: Tensor, numerics: Numerics) -> None:
    """Raise UnsupportedModel unless chunked, paged logits equal `expected`, those of `eager_logits` on the same tokens.

    To be taken before anything in the model is replaced, so that the gate covers the replacements too.
    """
    paged = _paged_logits(model, _token_ids(model.model).tolist())
    difference = (paged - expected).abs().max() / expected.std()
    most = TOLERANCE[model.dtype] if numerics.weights is Weights.DTYPE else INT8_TOLERANCE
    if not difference <= most:  # also refuses NaN
        raise UnsupportedModel(
            f"its paged logits differ from eager attention by {difference:.3g} standard deviations; "
            f"at most {most} is rounding"
        )
    if numerics.batch_invariant:
        _check_invariance(model, paged)


def eager_logits(model: PreTrainedModel) -> Tensor:
    """Return the logits of the last of a few fixed tokens, [vocab_size], by transformers' own attention.

    Of a model that `PagedModel` has not taken over yet.
    """
    token_ids = _token_ids(model).to(model.device)
    with reference_attention(model.eval()), torch.inference_mode():
        output = model(input_ids=token_ids.unsqueeze(0), use_cache=False, logits_to_keep=1)
    logits: Tensor = output.logits[0, -1].float()
    return logits


def _token_ids(model: PreTrainedModel) -> Tensor:
    config = model.config.get_text_config()
    num_tokens = min(MOST_TOKENS, max_model_len(config))
    vocab_size: int = config.vocab_size
    return torch.arange(3, 3 + num_tokens * 7, 7) % vocab_size


def _paged_logits(model: PagedModel, token_ids: list[int]) -> Tensor:
    """Return the logits of the last token, computed in two chunks over blocks in scattered order."""
    num_blocks, num_groups = -(-len(token_ids) // BLOCK_SIZE), len(model.kv_groups)
    cache = KVCache(model.kv_shape(BLOCK_SIZE), (num_blocks + 1) * num_groups, model.device)
    request = probe_request(token_ids, range(num_blocks, 0, -1), num_groups)
    logits = torch.empty(0)
    for start, stop in ((0, FIRST_CHUNK), (FIRST_CHUNK, len(token_ids))):
        logits = model.forward(model.build_input(plan_of(request, start, stop), cache))
    return logits[-1]


def _check_invariance(model: PagedModel, alone: Tensor) -> None:
    """Raise UnsupportedModel unless logits have the bits of `alone` beside other requests, in other chunks as well."""
    token_ids = _token_ids(model.model).tolist()
    num_tokens, size = len(token_ids), -(-len(token_ids) // BLOCK_SIZE)
    num_groups = len(model.kv_groups)
    for beside in (0, 1, 9, 60):
        for cuts in ((num_tokens,), (7, 8, num_tokens)):
            cache = KVCache(model.kv_shape(BLOCK_SIZE), (2 * size + beside) * num_groups, model.device)
            request = probe_request(token_ids, range(size, 2 * size), num_groups)
            others = [probe_request(token_ids[:1], [2 * size + index], num_groups) for index in range(beside)]
            logits = torch.empty(0)
            for start, stop in zip((0, *cuts), cuts, strict=False):
                shares = [ScheduledRequest(other, 0, 1) for other in others]
                shares.append(ScheduledRequest(request, start, stop - start))
                plan = SchedulerOutput(tuple(shares), beside + stop - start, ())
                logits = model.forward(model.build_input(plan, cache))[-1]
            if not torch.equal(logits, alone):
                raise UnsupportedModel(
                    "batch_invariant is asked for, but on this device its logits depend on what else is in a step"
                )
