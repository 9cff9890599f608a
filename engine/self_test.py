"""The gate at load: a model is served only if the paged path gives what its own eager attention gives."""

import torch
from torch import Tensor

from engine.kv_cache import KVCache
from engine.paged_model import ATTENTION_NAME, PagedModel, UnsupportedModel
from engine.probing import plan_of, probe_request

SERVED_LAYERS = {"full_attention", "sliding_attention"}
NUM_TOKENS = 24
BLOCK_SIZE = 4
FIRST_CHUNK = 13  # ends inside a block, so that the second chunk reads a partly filled one
# Largest difference allowed, as a share of the logits' standard deviation. A model whose attention is not ours, or not
# wholly ours, is off by about 1; rounding in the narrow types stays well below these.
TOLERANCE = {torch.float32: 0.002, torch.float16: 0.1, torch.bfloat16: 0.4}


def self_test(model: PagedModel, expected: Tensor) -> None:
    """Raise UnsupportedModel unless chunked, paged logits equal `expected`, those of `eager_logits` on the same tokens.

    To be taken before anything in the model is replaced, so that the gate covers the replacements too.
    """
    layer_types = set(getattr(model.model.config.get_text_config(), "layer_types", None) or ["full_attention"])
    if not layer_types <= SERVED_LAYERS:
        served = " and ".join(sorted(SERVED_LAYERS))
        raise UnsupportedModel(f"its layers are {', '.join(sorted(layer_types))}; only {served} are served")
    paged = _paged_logits(model, _token_ids(model).tolist())
    difference = (paged - expected).abs().max() / expected.std()
    if not difference <= TOLERANCE[model.dtype]:  # also refuses NaN
        raise UnsupportedModel(
            f"its paged logits differ from eager attention by {difference:.3g} standard deviations; "
            f"at most {TOLERANCE[model.dtype]} is rounding"
        )


def eager_logits(model: PagedModel) -> Tensor:
    """Return the logits of the last of a few fixed tokens, [vocab_size], by transformers' own attention."""
    token_ids = _token_ids(model).to(model.device)
    model.model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            output = model.model(input_ids=token_ids.unsqueeze(0), use_cache=False, logits_to_keep=1)
    finally:
        model.model.set_attn_implementation(ATTENTION_NAME)
    logits: Tensor = output.logits[0, -1].float()
    return logits


def _token_ids(model: PagedModel) -> Tensor:
    return torch.arange(3, 3 + NUM_TOKENS * 7, 7) % model.vocab_size


def _paged_logits(model: PagedModel, token_ids: list[int]) -> Tensor:
    """Return the logits of the last token, computed in two chunks over blocks in scattered order."""
    num_blocks = NUM_TOKENS // BLOCK_SIZE
    cache = KVCache(model.kv_shape(BLOCK_SIZE), num_blocks + 1, model.device)
    request = probe_request(token_ids, range(num_blocks, 0, -1))
    logits = torch.empty(0)
    for start, stop in ((0, FIRST_CHUNK), (FIRST_CHUNK, NUM_TOKENS)):
        logits = model.forward(model.build_input(plan_of(request, start, stop), cache))
    for index, (key_cache, _) in enumerate(cache.layers):
        written = key_cache[request.block_ids].flatten(0, 1).flatten(1).any(dim=1)
        if not written.all():
            raise UnsupportedModel(f"its layer {index} does not call the attention function")
    return logits[-1]
