"""Drawing tokens on a GPU, in Triton, without a sort: one program a row searches it for the few values it needs.

What a sort would be read for are three values: the k-th largest logit, the one at which top-p's mass is reached, and
the one at which the drawn mass is. Each is where a sum over all larger logits crosses a limit, and is found by
narrowing a range of values: three pivots a pass over the row. After two passes little is left in the range; that is
copied together, and the rest of the search reads the copy only.

A token's weight is its probability beside the likeliest one's, a float32 exponential as a whole number of 2^-40. So
sums are exact in whatever order they are made, and a row's token does not depend on other rows, nor on tiles. A token
less likely than 2^-40 of the likeliest weighs nothing and is not drawn.

Not run on a GPU yet; see `kernels.triton_attention`.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.draws import Draws

LOG2_E = math.log2(math.e)
MAX_VOCAB_SIZE = 2**22  # of which the weights' sum fits in 63 bits
TILE_ELEMENTS = 4096
NUM_WARPS = 16
FLOAT32 = torch.finfo(torch.float32)


def draw(logits: Tensor, draws: Draws) -> Tensor:
    """Return the token of each draw, [num_draws], int64. logits: [num_rows, vocab_size], float32; the largest logit of
    a row that is drawn from is finite, and none is NaN.

    Logits order the tokens, and the lower id comes first among equal logits: also where top-k or top-p keeps only some
    of them. That is `kernels.reference.draw`, up to the rounding of float32 exponentials. Raises ValueError for too
    wide a row.
    """
    vocab_size = logits.shape[1]
    assert logits.dtype is torch.float32
    assert logits.stride(1) == 1
    if vocab_size > MAX_VOCAB_SIZE:
        raise ValueError(f"vocab_size is {vocab_size}; it must be at most {MAX_VOCAB_SIZE}")
    num_draws = len(draws.rows)
    tokens = torch.empty_like(draws.rows)
    # In range, so that no difference of logits, be it 0 or infinite, becomes NaN.
    scales = (LOG2_E / draws.temperatures).clamp(FLOAT32.tiny, FLOAT32.max).float()
    draw_row[(num_draws,)](
        tokens,
        logits,
        logits.new_empty(num_draws, vocab_size),
        draws.rows,
        scales,
        draws.top_ks,
        draws.top_ps,
        draws.min_ps,
        draws.uniforms,
        logits.stride(0),
        vocab_size,
        TILE_ELEMENTS=TILE_ELEMENTS,
        num_warps=NUM_WARPS,
        enable_fp_fusion=True,
    )
    return tokens


@triton.jit  # type: ignore[untyped-decorator]
def draw_row(  # type: ignore[no-untyped-def]
    tokens_ptr,  # [num_draws], int64
    logits_ptr,  # [num_rows, vocab_size], float32
    copy_ptr,  # [num_draws, vocab_size], float32: room for the logits that are still searched
    rows_ptr,  # [num_draws], int64
    scales_ptr,  # [num_draws], float32: log2(e) / temperature
    top_ks_ptr,  # [num_draws], int64
    top_ps_ptr,  # [num_draws], float64
    min_ps_ptr,  # [num_draws], float64
    uniforms_ptr,  # [num_draws], float64
    row_stride,
    vocab_size,
    TILE_ELEMENTS: tl.constexpr,
):
    """Make one draw. Grid: [num_draws]."""
    draw = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + tl.load(rows_ptr + draw) * row_stride
    copy_ptr += draw * vocab_size
    scale = tl.load(scales_ptr + draw)
    top_k = tl.load(top_ks_ptr + draw)
    top_p = tl.load(top_ps_ptr + draw)
    min_p = tl.load(min_ps_ptr + draw)
    greatest = _greatest(row_ptr, vocab_size, TILE_ELEMENTS)

    lowest = tl.full([], -2147483648, tl.int64)  # below all keys
    below = lowest  # all tokens that are left have larger keys
    if (top_k > 0) & (top_k < vocab_size):
        key, num_above = _crossing(row_ptr, copy_ptr, greatest, scale, top_k, below, vocab_size, TILE_ELEMENTS, True)
        total = _mass(row_ptr, greatest, scale, key, 0, vocab_size, TILE_ELEMENTS)
        total += (top_k - num_above) * _weight_of(_value_of(key), greatest, scale)
        below = key - 1
    else:
        total = _mass(row_ptr, greatest, scale, lowest, 0, vocab_size, TILE_ELEMENTS)
    if top_p < 1.0:
        limit = tl.minimum(_ceil(top_p * total.to(tl.float64)), total)
        key, above = _crossing(row_ptr, copy_ptr, greatest, scale, limit, below, vocab_size, TILE_ELEMENTS, False)
        weight = _weight_of(_value_of(key), greatest, scale)
        total = above + (limit - above + weight - 1) // weight * weight
        below = key - 1
    if min_p > 0.0:
        # What min-p keeps and what is left so far are both the likeliest tokens: the fewer of them are in both.
        least = _ceil(min_p * 1099511627776.0)  # 2^40, the likeliest token's weight
        total = tl.minimum(total, _mass(row_ptr, greatest, scale, lowest, least, vocab_size, TILE_ELEMENTS))

    drawn = (tl.load(uniforms_ptr + draw) * total.to(tl.float64)).to(tl.int64)
    drawn = tl.minimum(drawn, total - 1)  # a product that was rounded up
    key, above = _crossing(row_ptr, copy_ptr, greatest, scale, drawn + 1, below, vocab_size, TILE_ELEMENTS, False)
    rank = (drawn - above) // _weight_of(_value_of(key), greatest, scale)
    tl.store(tokens_ptr + draw, _token_at(row_ptr, key, rank, vocab_size, TILE_ELEMENTS))


@triton.jit  # type: ignore[untyped-decorator]
def _crossing(  # type: ignore[no-untyped-def]
    row_ptr,
    copy_ptr,
    greatest,
    scale,
    limit,
    below,
    vocab_size,
    TILE_ELEMENTS: tl.constexpr,
    COUNTS: tl.constexpr,
):
    """Return the smallest key such that the weights of larger ones add up to less than `limit`, and that sum.

    Sums of weights, or, with COUNTS, numbers of tokens. Those of keys larger than `below` add up to at least `limit`.
    """
    low, high = below, _key_of(greatest).to(tl.int64)
    none = tl.zeros([], tl.int64)
    low, high, above = _narrow(
        row_ptr, vocab_size, none, greatest, scale, limit, low, high, none, TILE_ELEMENTS, COUNTS, True
    )
    low, high, above = _narrow(
        row_ptr, vocab_size, none, greatest, scale, limit, low, high, above, TILE_ELEMENTS, COUNTS, False
    )
    num_copied = _copy_between(copy_ptr, row_ptr, low, high, vocab_size, TILE_ELEMENTS)
    tl.debug_barrier()  # threads read what others copied
    above_copied = above
    while high - low > 1:
        low, high, above = _narrow(
            copy_ptr, num_copied, above_copied, greatest, scale, limit, low, high, above, TILE_ELEMENTS, COUNTS, False
        )
    tl.debug_barrier()  # the next search copies to the same place
    return high, above


@triton.jit  # type: ignore[untyped-decorator]
def _narrow(  # type: ignore[no-untyped-def]
    values_ptr,
    num_values,
    above_values,
    greatest,
    scale,
    limit,
    low,
    high,
    above,
    TILE_ELEMENTS: tl.constexpr,
    COUNTS: tl.constexpr,
    BY_LIKELIHOOD: tl.constexpr,
):
    """Narrow a range (low, high], `above` being the sum above `high`, by a pass over values: a row's, or those of its
    that are in the range, to which `above_values` is to be added.

    Pivots are the range's quarters, or where probabilities are wont to cross something: 1/2, 1/32 and 1/1024 of the
    likeliest token's.
    """
    if BY_LIKELIHOOD:
        first = _key_of(greatest - 10.0 / scale).to(tl.int64)
        second = _key_of(greatest - 5.0 / scale).to(tl.int64)
        third = _key_of(greatest - 1.0 / scale).to(tl.int64)
    else:
        first = low + (high - low) // 4
        second = low + (high - low) // 2
        third = low + (high - low) * 3 // 4
    narrow_first, narrow_second, narrow_third = first.to(tl.int32), second.to(tl.int32), third.to(tl.int32)
    above_first = tl.zeros([TILE_ELEMENTS], tl.int64)
    above_second = tl.zeros([TILE_ELEMENTS], tl.int64)
    above_third = tl.zeros([TILE_ELEMENTS], tl.int64)
    for start in range(0, num_values, TILE_ELEMENTS):
        places = start + tl.arange(0, TILE_ELEMENTS)
        mask = places < num_values
        values = tl.load(values_ptr + places, mask=mask, other=float("-inf"))
        keys = _key_of(values)
        weights = mask.to(tl.int64) if COUNTS else _weight_of(values, greatest, scale)
        above_first += tl.where(keys > narrow_first, weights, 0)
        above_second += tl.where(keys > narrow_second, weights, 0)
        above_third += tl.where(keys > narrow_third, weights, 0)
    low, high, above = _take(low, high, above, third, above_values + tl.sum(above_third, 0), limit)
    low, high, above = _take(low, high, above, second, above_values + tl.sum(above_second, 0), limit)
    return _take(low, high, above, first, above_values + tl.sum(above_first, 0), limit)


@triton.jit
def _take(low, high, above, pivot, above_pivot, limit):  # type: ignore[no-untyped-def]
    """Return the range and the sum above it, narrowed by what one pivot says; pivots come in descending order."""
    fits = above_pivot < limit
    inside = (pivot > low) & (pivot < high)
    new_low = tl.where(inside & (above_pivot >= limit), pivot, low)
    return new_low, tl.where(inside & fits, pivot, high), tl.where(inside & fits, above_pivot, above)


@triton.jit  # type: ignore[untyped-decorator]
def _copy_between(  # type: ignore[no-untyped-def]
    copy_ptr, row_ptr, low, high, vocab_size, TILE_ELEMENTS: tl.constexpr
):
    """Copy the logits whose keys are in (low, high] side by side, and return how many they are."""
    num_copied = tl.zeros([], tl.int32)
    for start in range(0, vocab_size, TILE_ELEMENTS):
        token_ids = start + tl.arange(0, TILE_ELEMENTS)
        mask = token_ids < vocab_size
        values = tl.load(row_ptr + token_ids, mask=mask, other=0.0)
        keys = _key_of(values)
        inside = mask & (keys > low.to(tl.int32)) & (keys <= high.to(tl.int32))
        places = num_copied + tl.cumsum(inside.to(tl.int32), 0) - 1
        tl.store(copy_ptr + places, values, mask=inside)
        num_copied += tl.sum(inside.to(tl.int32), 0)
    return num_copied


@triton.jit  # type: ignore[untyped-decorator]
def _mass(  # type: ignore[no-untyped-def]
    row_ptr, greatest, scale, key, least, vocab_size, TILE_ELEMENTS: tl.constexpr
):
    """Return the sum of the weights of at least `least` whose keys are larger than `key`."""
    masses = tl.zeros([TILE_ELEMENTS], tl.int64)
    for start in range(0, vocab_size, TILE_ELEMENTS):
        token_ids = start + tl.arange(0, TILE_ELEMENTS)
        values = tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf"))
        weights = _weight_of(values, greatest, scale)
        masses += tl.where((_key_of(values) > key.to(tl.int32)) & (weights >= least), weights, 0)
    return tl.sum(masses, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _greatest(row_ptr, vocab_size, TILE_ELEMENTS: tl.constexpr):  # type: ignore[no-untyped-def]
    greatest = tl.full([TILE_ELEMENTS], float("-inf"), tl.float32)
    for start in range(0, vocab_size, TILE_ELEMENTS):
        token_ids = start + tl.arange(0, TILE_ELEMENTS)
        values = tl.load(row_ptr + token_ids, mask=token_ids < vocab_size, other=float("-inf"))
        greatest = tl.maximum(greatest, values)
    return tl.max(greatest, 0)


@triton.jit  # type: ignore[untyped-decorator]
def _token_at(  # type: ignore[no-untyped-def]
    row_ptr, key, rank, vocab_size, TILE_ELEMENTS: tl.constexpr
):
    """Return the token that is number `rank`, from 0, of those with one key."""
    token = tl.zeros([], tl.int64)
    num_seen = tl.zeros([], tl.int64)
    for start in range(0, vocab_size, TILE_ELEMENTS):
        token_ids = start + tl.arange(0, TILE_ELEMENTS)
        mask = token_ids < vocab_size
        keys = _key_of(tl.load(row_ptr + token_ids, mask=mask, other=0.0))
        matches = mask & (keys == key.to(tl.int32))
        ranks = num_seen + tl.cumsum(matches.to(tl.int32), 0) - 1
        token += tl.sum(tl.where(matches & (ranks == rank), token_ids, 0).to(tl.int64), 0)
        num_seen += tl.sum(matches.to(tl.int64), 0)
    return token


@triton.jit
def _key_of(values):  # type: ignore[no-untyped-def]
    """Return whole numbers in the order of float32 values, int32; both zeros have one."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 2147483647)


@triton.jit
def _value_of(key):  # type: ignore[no-untyped-def]
    """Return the float32 value of a key."""
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 2147483647)).to(tl.float32, bitcast=True)


@triton.jit
def _weight_of(values, greatest, scale):  # type: ignore[no-untyped-def]
    """Return the weights of logits, int64."""
    return (tl.exp2((values - greatest) * scale) * 1099511627776.0).to(tl.int64)


@triton.jit
def _ceil(number):  # type: ignore[no-untyped-def]
    """Return the smallest whole number of at least a float64 number, which is not negative."""
    whole = number.to(tl.int64)
    return whole + (whole.to(tl.float64) < number).to(tl.int64)
