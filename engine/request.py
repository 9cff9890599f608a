"""A request: the engine's in-memory form of a job, with its sampling parameters and its figures."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum, auto

from engine.grammar import Grammar
from engine.limits import MAX_LOGIT_BIAS, MAX_PENALTY, MAX_TOP_LOGPROBS
from engine.stop_strings import StopFinder


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = auto()  # a stop token id, the model's own or the request's
    STOP_STRING = auto()
    LENGTH = auto()  # max_tokens or the context limit
    CANCELLED = auto()
    ERROR = auto()


class RequestState(StrEnum):
    """Where a request stands. Prefill and decode are not states: see `num_computed_tokens`."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class RequestError(Exception):
    """A request that cannot be served as asked; `code` is stable, the message names the field and the limit."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to stop. Raises RequestError for a value out of range."""

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id, what is added to its logit
    logprobs: int | None = None  # None is without; else how many of the most likely tokens beside the chosen one
    prompt_logprobs: int | None = None  # of the prompt's tokens, likewise; the prompt is then computed, cached or not
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    skip_special_tokens: bool = True  # leave them out of the text that stop strings are looked for in
    goes_on: bool = False  # that text goes on where the prompt's ends, instead of beginning one of its own

    def __post_init__(self) -> None:
        checks = (
            ("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1"),
            ("min_tokens", self.min_tokens, 0 <= self.min_tokens <= self.max_tokens, "between 0 and max_tokens"),
            ("temperature", self.temperature, 0.0 <= self.temperature < float("inf"), "finite and at least 0"),
            ("top_k", self.top_k, self.top_k >= 0, "at least 0"),
            ("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "between 0 and 1"),
            *(
                (name, value, abs(value) <= MAX_PENALTY, f"between -{MAX_PENALTY} and {MAX_PENALTY}")
                for name, value in (
                    ("presence_penalty", self.presence_penalty),
                    ("frequency_penalty", self.frequency_penalty),
                )
            ),
            (
                "repetition_penalty",
                self.repetition_penalty,
                0.0 < self.repetition_penalty <= MAX_PENALTY,
                f"above 0 and at most {MAX_PENALTY}",
            ),
            (
                "logit_bias",
                self.logit_bias,
                all(abs(bias) <= MAX_LOGIT_BIAS for _, bias in self.logit_bias),
                f"between -{MAX_LOGIT_BIAS} and {MAX_LOGIT_BIAS}",
            ),
            ("logprobs", self.logprobs, 0 <= (self.logprobs or 0) <= MAX_TOP_LOGPROBS, f"at most {MAX_TOP_LOGPROBS}"),
            (
                "prompt_logprobs",
                self.prompt_logprobs,
                0 <= (self.prompt_logprobs or 0) <= MAX_TOP_LOGPROBS,
                f"at most {MAX_TOP_LOGPROBS}",
            ),
            ("seed", self.seed, 0 <= self.seed < 2**63, "between 0 and 2**63 - 1"),
            ("stop", self.stop, all(self.stop), "made of non-empty strings"),
        )
        for name, value, holds, limit in checks:
            if not holds:
                raise RequestError("invalid_parameter", f"{name} is {value!r}; it must be {limit}")

    @property
    def has_penalties(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one output position, by the model alone: before penalties, biases, a
    grammar, temperature and cuts."""

    logprob: float  # of the token that was chosen
    top: tuple[tuple[int, float], ...]  # the most likely tokens, best first


@dataclass(slots=True)
class RequestFigures:
    """What one request cost. Times are seconds on the engine's clock."""

    arrived_at: float
    admitted_at: float | None = None  # first admission
    finished_at: float | None = None
    token_times: list[float] = field(default_factory=list)  # one entry an output token
    prefix_hit_tokens: int = 0  # prompt tokens whose blocks were reused at the first admission
    computed_tokens: int = 0  # tokens run through the model, recomputation included
    kv_blocks_peak: int = 0
    kv_block_seconds: float = 0.0  # blocks held, shared ones included, integrated over time
    preemptions: int = 0
    drafted_tokens: int = 0  # proposed by speculation and computed; of the computed ones
    accepted_tokens: int = 0  # of those: they became output
    blocks_changed_at: float = 0.0  # when the number of blocks held last changed
    # The ledger's, in whole nanoseconds: they add up.
    engine_ns: int = 0  # its part of the steps that it was in
    wasted_ns: int = 0  # of that: for tokens computed before, drafts that were rejected, and steps that failed
    recomputed_tokens: int = 0  # of the computed ones: lost to a preemption or a failed step, and computed again
    reached_tokens: int = 0  # the most that it ever had computed
    kv_block_share_ns: int = 0  # blocks x time, each block's divided among its holders; see engine.block_ledger
    kv_block_meter_ns: int = 0  # what the meters of the blocks that it holds stood at


@dataclass(slots=True)
class GroupFigures:
    """The blocks that the requests of a group hold together: one that several of them share counts once."""

    blocks_changed_at: float  # seconds on the engine's clock
    kv_blocks_peak: int = 0
    kv_block_seconds: float = 0.0
    holders: Counter[int] = field(default_factory=Counter)  # by block id

    def take(self, block_ids: Iterable[int], now: float) -> None:
        """Note that one of the group holds these blocks too from now on."""
        self._account(now)
        self.holders.update(block_ids)
        self.kv_blocks_peak = max(self.kv_blocks_peak, len(self.holders))

    def give_back(self, block_ids: Iterable[int], now: float) -> None:
        """Note that one of the group has let go of these blocks."""
        self._account(now)
        for block_id in block_ids:
            self.holders[block_id] -= 1
            if not self.holders[block_id]:
                del self.holders[block_id]

    def _account(self, now: float) -> None:
        self.kv_block_seconds += len(self.holders) * (now - self.blocks_changed_at)
        self.blocks_changed_at = now


@dataclass(slots=True, eq=False)
class ForkGroup:
    """The unfinished requests of one prompt, one an output; `engine.forking` says how they share its blocks."""

    figures: GroupFigures
    members: list["Request"] = field(default_factory=list)  # in the order of their outputs
    aside: list["Request"] = field(default_factory=list)  # waiting ones, for which another computes the prompt


@dataclass(slots=True)
class BlockTable:
    """A request's blocks in one KV group, by position."""

    block_ids: list[int] = field(default_factory=list)  # 0 where a block slid out of the group's window
    num_slid: int = 0  # leading ones that slid out, and are held no more

    @property
    def held(self) -> list[int]:
        """The blocks that are held, in order."""
        return self.block_ids[self.num_slid :]


@dataclass(slots=True, eq=False)
class Request:
    """One sequence. The scheduler owns its state, the cache manager its blocks.

    Known tokens (`token_ids`) against computed tokens (`num_computed_tokens`, those with KV in blocks) is the only
    idea: a prefill is behind by many, a decode by one.
    """

    request_id: str
    tenant: str  # salts the block hashes: tenants share no prefix
    token_ids: list[int]  # prompt, then output
    num_prompt_tokens: int
    params: SamplingParams
    stop_ids: frozenset[int]  # the model's and the request's together
    figures: RequestFigures
    state: RequestState = RequestState.WAITING
    num_computed_tokens: int = 0  # those of steps under way too
    num_pending_tokens: int = 0  # chosen in steps under way, and not known yet
    block_tables: list[BlockTable] = field(default_factory=list)  # one a KV group, all as long; none before admission
    block_hashes: list[bytes] = field(default_factory=list)  # of full blocks, as far as needed
    num_cached_blocks: int = 0  # leading blocks of each table already offered to the prefix cache
    grammar: Grammar | None = None
    may_draft: bool = True  # not any more after an error that its draft may be to blame for
    output_counts: dict[int, int] = field(default_factory=dict)  # times in the output, for penalties
    num_tallied: int = 0  # tokens that `output_counts` has taken in
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # one an output token, where asked for
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)  # of the prompt's tokens from the second on
    finish_reason: FinishReason | None = None
    stop_finder: StopFinder | None = None  # where it has stop strings
    stop_at: int | None = None  # the character of the output's text at which the stop string begins that ended it
    error: RequestError | None = None
    group: ForkGroup | None = None  # of a prompt with several outputs

    @property
    def has_prompt(self) -> bool:
        """Whether it holds the KV of its whole prompt."""
        return self.num_computed_tokens >= self.num_prompt_tokens

    @property
    def held_block_ids(self) -> list[int]:
        """The blocks that it holds in all KV groups, in the order of the tokens that are in them."""
        tables = self.block_tables
        if len(tables) == 1:
            return tables[0].held
        return [
            table.block_ids[index]
            for index in range(self.num_table_blocks)
            for table in tables
            if index >= table.num_slid
        ]

    @property
    def num_held_blocks(self) -> int:
        return sum(len(table.block_ids) - table.num_slid for table in self.block_tables)

    @property
    def num_table_blocks(self) -> int:
        """The length of its block tables, what slid out included."""
        return len(self.block_tables[0].block_ids) if self.block_tables else 0

    @property
    def lacks_prompt_logprobs(self) -> bool:
        """Whether it is still to compute prompt rows for their logits' sake: no other request's blocks help then."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < self.num_prompt_tokens - 1

    @property
    def num_tokens(self) -> int:
        """Known tokens."""
        return len(self.token_ids)

    @property
    def num_expected_tokens(self) -> int:
        """Tokens, known and pending."""
        return len(self.token_ids) + self.num_pending_tokens

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_expected_output_tokens(self) -> int:
        """Output tokens, known and pending: the position of the one that is sampled next."""
        return self.num_expected_tokens - self.num_prompt_tokens

    @property
    def is_planned_in_turn(self) -> bool:
        """Whether its next step cannot be planned before the one under way has ended: while others of its group wait
        for the prompt, or while its own prompt is scored."""
        return (self.group is not None and bool(self.group.aside)) or self.lacks_prompt_logprobs

    @property
    def chooses_by_output(self) -> bool:
        """Whether its next token is chosen by those before it, which must be known then, and not by logits alone."""
        return self.grammar is not None or self.params.has_penalties

    @property
    def output_token_ids(self) -> list[int]:
        return self.token_ids[self.num_prompt_tokens :]
