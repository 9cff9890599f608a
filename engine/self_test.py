"""The gate at load: a model is served only if the paged path gives what its own eager attention gives.

What is compared is the logits of many tokens, and what counts is the median over each stretch of them. One token of a
model in a narrow type may be led astray by rounding alone, where it makes another expert win; a stretch is not. Of the
architectures that are served, with random weights in bfloat16, single tokens are off by up to 1.3 standard deviations,
the median of a stretch by at most a tenth; Gemma 3 270M's own weights, on tokens that make no sense, by a fifth.
"""

import dataclasses

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention_layers import UnsupportedModel
from engine.attention_patches import reference_attention
from engine.context_length import max_model_len
from engine.kv_cache import KVCache
from engine.linears import Numerics, Weights
from engine.paged_model import PagedModel
from engine.probing import plan_of, probe_request
from engine.step_plan import ScheduledRequest, SchedulerOutput

BLOCK_SIZE = 16
STRETCH = 24  # tokens
SAMPLED = 3  # of a stretch every so manieth token's logits are compared
NUM_TOKENS = 5 * STRETCH  # seven blocks, and half of one
FARTHEST_WINDOW = 600  # tokens: the edge of a window that is no wider is crossed
CUTS = (13, 61)  # where chunks end, inside blocks: the next one reads a partly filled block
INVARIANCE_TOKENS = 56
DIFFERENT_TOKENS = 24
# The largest median of a stretch that is allowed: of the root mean square difference over the vocabulary, as a share of
# the logits' standard deviation. A model whose attention is not ours, or not wholly ours, is off by about 1.
TOLERANCE = {torch.float32: 0.001, torch.float16: 0.08, torch.bfloat16: 0.4}
INT8_TOLERANCE = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """What transformers' own attention makes of a few fixed tokens."""

    stretches: tuple[range, ...]  # positions of the tokens that are compared, by stretch
    logits: Tensor  # [number of positions, vocab_size], float32


def self_test(model: PagedModel, expected: Expected, numerics: Numerics) -> None:
    """Raise UnsupportedModel unless chunked, paged logits equal `expected`, those of `eager_logits` on the same tokens.

    To be taken before anything in the model is replaced, so that the gate covers the replacements too.
    """
    difference = _difference(_paged_logits(model, expected.stretches), expected)
    most = TOLERANCE[model.dtype] if numerics.weights is Weights.DTYPE else INT8_TOLERANCE
    if not difference <= most:  # also refuses NaN
        raise UnsupportedModel(
            f"its paged logits differ from eager attention by {difference:.3g} standard deviations; "
            f"at most {most} is rounding"
        )
    if numerics.batch_invariant:
        _check_invariance(model)


def eager_logits(model: PreTrainedModel) -> Expected:
    """Return what a model makes of a few fixed tokens by transformers' own attention.

    Of a model that `PagedModel` has not taken over yet.
    """
    stretches = _stretches(model)
    positions = torch.tensor([position for stretch in stretches for position in stretch], device=model.device)
    token_ids = _token_ids(model, stretches[-1].stop).to(model.device)
    with reference_attention(model.eval()), torch.inference_mode():
        output = model(input_ids=token_ids.unsqueeze(0), use_cache=False, logits_to_keep=positions)
    return Expected(stretches, output.logits[0].float())


def _stretches(model: PreTrainedModel) -> tuple[range, ...]:
    """Return the positions to compare: from the beginning on, or at the beginning and before and behind the edge of the
    widest window that is not too far."""
    config = model.config.get_text_config()
    longest = max_model_len(config)
    window = getattr(config, "sliding_window", None) or 0
    starts = list(range(0, NUM_TOKENS, STRETCH))
    if NUM_TOKENS - STRETCH < window <= min(FARTHEST_WINDOW, longest - STRETCH):
        starts = [*starts[:3], window - STRETCH, window]
    fitting = [start for start in starts if start + STRETCH <= longest]
    if not fitting:
        return (range(longest),)
    return tuple(range(start + SAMPLED - 1, start + STRETCH, SAMPLED) for start in fitting)


def _token_ids(model: PreTrainedModel, num_tokens: int) -> Tensor:
    """Return a few different tokens, in an order that does not come again."""
    vocab_size: int = model.config.get_text_config().vocab_size
    places = torch.arange(num_tokens)
    return (3 + 7 * (places.square() // 3 % DIFFERENT_TOKENS)) % vocab_size


def _difference(found: Tensor, expected: Expected) -> Tensor:
    """Return the largest of the stretches' medians; NaN where there is one in a median."""
    distances = (found - expected.logits).square().mean(dim=-1).sqrt() / expected.logits.std(dim=-1)
    sizes = [len(stretch) for stretch in expected.stretches]
    return torch.stack([stretch.median() for stretch in distances.split(sizes)]).max()


def _paged_logits(model: PagedModel, stretches: tuple[range, ...]) -> Tensor:
    """Return the logits at all positions of `stretches`, computed in chunks over blocks in scattered order."""
    positions = [position for stretch in stretches for position in stretch]
    num_tokens = stretches[-1].stop
    num_blocks, num_groups = -(-num_tokens // BLOCK_SIZE), len(model.kv_groups)
    cache = KVCache(model.kv_shape(BLOCK_SIZE), (num_blocks + 1) * num_groups, model.device)
    token_ids = _token_ids(model.model, num_tokens).tolist()
    request = probe_request(token_ids, range(num_blocks, 0, -1), num_groups)
    cuts = [*(cut for cut in CUTS if cut < num_tokens), num_tokens]
    found = []
    for start, stop in zip([0, *cuts], cuts, strict=False):
        rows = torch.tensor([position - start for position in positions if start <= position < stop])
        model_input = model.build_input(plan_of(request, start, stop), cache)
        logits = model.forward(dataclasses.replace(model_input, sample_rows=rows.to(model.device)))
        found.append(logits)
    return torch.cat(found)


def _check_invariance(model: PagedModel) -> None:
    """Raise UnsupportedModel unless logits have the same bits alone and beside other requests, in other chunks too."""
    token_ids = _token_ids(model.model, min(INVARIANCE_TOKENS, model.max_model_len)).tolist()
    num_tokens, size = len(token_ids), -(-len(token_ids) // BLOCK_SIZE)
    num_groups = len(model.kv_groups)
    alone: Tensor | None = None
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
            alone = logits if alone is None else alone
            if not torch.equal(logits, alone):
                raise UnsupportedModel(
                    "batch_invariant is asked for, but on this device its logits depend on what else is in a step"
                )
