"""How large a worker's engine is: what its settings say, within what its device can spare."""

from dataclasses import replace

import torch

from engine.config import EngineConfig
from engine.kv_cache import UnsupportedCache, choose_kv_dtype
from engine.memory import spare_kv_bytes
from engine.paged_model import PagedModel
from worker.errors import ConfigurationError
from worker.settings_model import Settings

CPU_TOKEN_BUDGET = 512
CUDA_TOKEN_BUDGET = 8192


def kv_dtype_of(settings: Settings, model: PagedModel) -> torch.dtype:
    """Return the type of a model's KV cache. Raises ConfigurationError."""
    try:
        return choose_kv_dtype(settings.kv_dtype, model.dtype, model.head_dim, model.device)
    except UnsupportedCache as error:
        raise ConfigurationError(f"kv_dtype: {error}") from error


def engine_config(settings: Settings, model: PagedModel, draft: PagedModel | None) -> EngineConfig:
    """Size the engine; of the memory for its KV cache, a draft model's has its part.

    Raises ConfigurationError when the KV cache could not hold a single sequence's start."""
    budget = CPU_TOKEN_BUDGET if model.device.type == "cpu" else CUDA_TOKEN_BUDGET
    kv_bytes = settings.kv_memory_bytes or spare_kv_bytes(model.device)
    bytes_per_block = model.kv_shape(settings.block_size, kv_dtype_of(settings, model)).bytes_per_block
    if kv_bytes < bytes_per_block:
        raise ConfigurationError(f"kv_memory_bytes: {kv_bytes} is less than one block of {bytes_per_block} bytes")
    if 0 < settings.kv_offload_bytes < bytes_per_block:
        given = int(settings.kv_offload_bytes)
        raise ConfigurationError(f"kv_offload_bytes: {given} is less than one block of {bytes_per_block} bytes")
    if settings.max_model_len is not None and settings.max_model_len > model.max_model_len:
        raise ConfigurationError(
            f"max_model_len: {settings.max_model_len} is more than the model's limit of {model.max_model_len} tokens"
        )
    try:
        config = EngineConfig(
            num_blocks=kv_bytes // bytes_per_block,
            max_model_len=settings.max_model_len or model.max_model_len,
            block_size=settings.block_size,
            max_num_seqs=settings.max_num_seqs,
            token_budget=settings.token_budget or max(budget, settings.max_num_seqs),
            enable_prefix_caching=settings.enable_prefix_caching,
            windows=model.windows,
            num_host_blocks=settings.kv_offload_bytes // bytes_per_block,
            # On a CPU planning and computing take turns anyway, on the same cores.
            async_scheduling=settings.async_scheduling and model.device.type != "cpu",
        )
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    if draft is not None:
        config = _beside_draft(config, bytes_per_block, draft)
    # More than every sequence at its longest would never be used.
    most = settings.max_num_seqs * config.whole_blocks_of(config.max_model_len)
    return replace(config, num_blocks=min(config.num_blocks, most))


def _beside_draft(config: EngineConfig, bytes_per_block: int, draft: PagedModel) -> EngineConfig:
    """Return the configuration with as many blocks as fit beside the draft model's. Raises ConfigurationError."""
    kv_bytes = config.num_blocks * bytes_per_block
    draft_bytes = draft.kv_shape(config.block_size).bytes_per_block
    whole = draft_config(config, draft.max_model_len, draft.windows).num_blocks * draft_bytes
    num_blocks = config.num_blocks * kv_bytes // (kv_bytes + whole)
    if num_blocks < 1:
        together = bytes_per_block + draft_bytes
        raise ConfigurationError(f"kv_memory_bytes: {kv_bytes} is less than one block of {together} bytes")
    return replace(config, num_blocks=num_blocks)


def draft_config(config: EngineConfig, max_model_len: int, windows: tuple[int | None, ...]) -> EngineConfig:
    """Return the configuration of a draft model's cache: of the sequences that are as long as both models take, it
    holds as many as the engine's. It has no tier in the host's memory."""
    longest = min(config.max_model_len, max_model_len)
    own = replace(config, max_model_len=max_model_len, windows=windows, num_host_blocks=0)
    num_blocks = -(-config.num_blocks * own.most_blocks_of(longest) // config.most_blocks_of(longest))
    return replace(own, num_blocks=num_blocks)
