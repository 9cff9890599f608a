"""Attention cases over quantised caches, stored by the oracle; what nobody wrote is as bad as it can be."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernels import reference
from kernels.kv_scales import KVScales
from kernels.paged_batch import PagedBatch, PagedSequence
from tests.kernels.cases import AttentionCase, Heads, SequenceLayout, build_case


@dataclass(frozen=True, slots=True)
class QuantisedCase:
    """An attention case whose caches are quantised."""

    case: AttentionCase
    scales: KVScales


def quantised_case(
    layouts: Sequence[SequenceLayout],
    heads: Heads,
    block_size: int,
    model_dtype: torch.dtype,
    dtype: torch.dtype,
    device: torch.device,
) -> QuantisedCase:
    """Return a case whose slots that belong to nobody have the scale NaN; those of a held block's tail are 0."""
    case = build_case(layouts, heads, block_size, model_dtype)
    held = PagedBatch(
        tuple(PagedSequence(s.block_ids, 0, len(s.block_ids) * block_size) for s in case.batch.sequences), block_size
    )
    slots = torch.tensor(sorted(set(held.slot_mapping())))
    key, value = (cache.flatten(0, 1)[slots] for cache in (case.key_cache, case.value_cache))
    key_cache, value_cache = torch.full((2, *case.key_cache.shape), 77, dtype=torch.int8).view(dtype)
    key_scales, value_scales = torch.full((2, *case.key_cache.shape[:3]), torch.nan, dtype=torch.float16)
    scales = KVScales(key_scales, value_scales)
    reference.store_kv(key, value, key_cache, value_cache, slots, scales)
    moved = replace(
        case,
        query=case.query.to(device),
        key_cache=key_cache.to(device),
        value_cache=value_cache.to(device),
    )
    return QuantisedCase(moved, KVScales(key_scales.to(device), value_scales.to(device)))
