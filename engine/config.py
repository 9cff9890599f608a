"""The engine's configuration: frozen, complete at construction, free of torch."""

from dataclasses import dataclass


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
    window: int | None = None  # tokens that any layer of the model sees, the newest included; None: some see all
    num_host_blocks: int = 0  # KV blocks that the host's memory holds beside the pool's

    def __post_init__(self) -> None:
        for field in ("num_blocks", "max_model_len", "block_size", "max_num_seqs", "token_budget"):
            value = getattr(self, field)
            if value < 1:
                raise ValueError(f"{field} is {value}; it must be at least 1")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window is {self.window}; it must be at least 1, or None")
        if self.num_host_blocks < 0:
            raise ValueError(f"num_host_blocks is {self.num_host_blocks}; it must be at least 0")
        if self.token_budget < self.max_num_seqs:
            raise ValueError(
                f"token_budget is {self.token_budget}; it must be at least max_num_seqs ({self.max_num_seqs}), "
                "or some running requests could never decode"
            )

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that fit in the pool at once."""
        return self.num_blocks * self.block_size

    @property
    def most_blocks(self) -> int:
        """Blocks that one request holds at most: those of a window and of a step where all layers have one."""
        whole = -(-self.max_model_len // self.block_size)
        if self.window is None:
            return whole
        # Neither the window's beginning nor the step's end need fall on a block's; one more while a block is copied.
        return min(whole, (self.window + self.token_budget - 2) // self.block_size + 3)

    @property
    def longest_sequence(self) -> int:
        """Tokens, prompt and output together, that a request may have."""
        return self.max_model_len if self.most_blocks <= self.num_blocks else self.kv_capacity_tokens
