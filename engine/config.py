"""The engine's configuration: frozen, complete at construction, free of torch."""

from bisect import bisect_right
from dataclasses import dataclass

from engine.kv_groups import most_held


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Sizes and limits of one engine.

    Raises ValueError, naming the field, for a value out of range.
    """

    num_blocks: int  # KV blocks in the pool
    max_model_len: int  # tokens, prompt and output together
    block_size: int = 16  # tokens a block
    max_num_seqs: int = 64  # requests that may share a step
    token_budget: int = 512  # tokens a step may compute
    enable_prefix_caching: bool = True
    windows: tuple[int | None, ...] = (None,)  # tokens that the layers of each KV group see, the newest included
    num_host_blocks: int = 0  # KV blocks that the host's memory holds beside the pool's
    async_scheduling: bool = False  # plan and launch a step while the one before is under way, where that can be

    def __post_init__(self) -> None:
        for field in ("num_blocks", "max_model_len", "block_size", "max_num_seqs", "token_budget"):
            value = getattr(self, field)
            if value < 1:
                raise ValueError(f"{field} is {value}; it must be at least 1")
        if not self.windows:
            raise ValueError("windows is empty; it must have at least 1 group's")
        for window in self.windows:
            if window is not None and window < 1:
                raise ValueError(f"windows has {window}; each must be at least 1, or None")
        if self.num_host_blocks < 0:
            raise ValueError(f"num_host_blocks is {self.num_host_blocks}; it must be at least 0")
        if self.token_budget < self.max_num_seqs:
            raise ValueError(
                f"token_budget is {self.token_budget}; it must be at least max_num_seqs ({self.max_num_seqs}), "
                "or some running requests could never decode"
            )

    @property
    def most_blocks_by_group(self) -> tuple[int, ...]:
        """Blocks that one request holds at most in each KV group: those of a window and of a step where it has one."""
        whole = -(-self.max_model_len // self.block_size)
        held = (most_held(w, self.max_model_len, self.token_budget, self.block_size) for w in self.windows)
        return tuple(min(whole, most + 1) for most in held)  # one more while one is copied

    def most_blocks_of(self, num_tokens: int) -> int:
        """Return the blocks that a request holds at most, in all KV groups, until it has so many tokens."""
        whole = -(-num_tokens // self.block_size)
        return sum(min(whole, most) for most in self.most_blocks_by_group)

    def whole_blocks_of(self, num_tokens: int) -> int:
        """Return the blocks that so many tokens take in all KV groups while nothing slides out."""
        return -(-num_tokens // self.block_size) * len(self.windows)

    @property
    def longest_sequence(self) -> int:
        """Tokens, prompt and output together, that a request may have."""
        if self.most_blocks_of(self.max_model_len) <= self.num_blocks:
            return self.max_model_len
        size = self.block_size
        places = range(size, self.max_model_len + size, size)
        return size * bisect_right(places, self.num_blocks, key=self.most_blocks_of)
