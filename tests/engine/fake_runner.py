"""A torch-free runner with a real KV, so that a leaked, stale or wrongly shared block shows as a wrong token."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.config import EngineConfig
from engine.forking import BlockCopy
from engine.host_tier import Spill
from engine.offload_policy import CopyTime
from engine.offloading import Transfer
from engine.request import Request, RequestError, RequestState
from engine.step_plan import Launched, Sampled, ScheduledRequest, SchedulerOutput
from tests.engine.fake_model import NAN_TOKEN, choice, stored, visible

UNWRITTEN = -1  # finite, and the token of no slot


class FakeDeviceError(Exception):
    """What the runner raises when told to."""


class FakeStep:
    """A step whose KV is written; its tokens are what `choose` returns when it is asked to choose."""

    def __init__(self, choose: Callable[[], dict[str, Sampled]], *, fails_late: bool) -> None:
        self._choose = choose
        self._fails_late = fails_late
        self._sampled: dict[str, Sampled] | None = None

    def choose(self) -> None:
        if self._sampled is None:
            self._sampled = self._choose()

    def sampled(self) -> dict[str, Sampled]:
        """Return the tokens, as the device has them for the next step."""
        assert self._sampled is not None, "a step chooses before anybody asks for its tokens"
        return self._sampled

    def results(self) -> Mapping[str, Sampled]:
        if self._fails_late:
            raise FakeDeviceError
        return self.sampled()


@dataclass
class FakeRunner:
    """Writes token ids into slots by block table; the next token is a hash of what it reads back through the tables.

    Each KV group writes its own form of a token, and reads what its window shows of them. As with the real kernels, all
    of a step's KV is written before any is read, and the unwritten tail of a request's last block is read too, under a
    mask that does not stop a NaN; nor does the causal mask within a chunk.
    """

    config: EngineConfig
    slots: list[int | None] = field(default_factory=list)  # None is NaN
    plans: list[SchedulerOutput] = field(default_factory=list)
    scrubbed: list[int] = field(default_factory=list)
    host: dict[int, list[int | None]] = field(default_factory=dict)  # content of the host's slots
    copy_times: list[CopyTime] = field(default_factory=list)  # to be told after the next step
    num_failures: int = 0  # steps to come that raise
    num_late_failures: int = 0  # steps to come that are computed, and raise when their results are asked for
    fails_on: Callable[[SchedulerOutput], Exception | None] = lambda plan: None  # what a step raises
    probe_fails: bool = False
    on_run: Callable[[], None] = lambda: None
    choosing_errors: list[Exception] = field(default_factory=list)  # what steps to come that choose late raise then
    chose_late: list[bool] = field(default_factory=list)  # which of the plans did

    def __post_init__(self) -> None:
        self.slots = [UNWRITTEN] * (self.config.num_blocks * self.config.block_size)
        self._latest = FakeStep(dict, fails_late=False)

    def launch(self, plan: SchedulerOutput) -> Launched:
        """Run a step, but for what it chooses late; one that is to fail late says so when its results are asked for."""
        self.plans.append(plan)
        self.chose_late.append(plan.chooses_late)
        self.on_run()
        self._compute(plan)
        reads = [self._read(share) for share in plan.scheduled]
        self._latest = FakeStep(lambda: self._choose(plan, reads), fails_late=self.num_late_failures > 0)
        self.num_late_failures = max(0, self.num_late_failures - 1)
        if not plan.chooses_late:
            self._latest.choose()
        return self._latest

    def _compute(self, plan: SchedulerOutput) -> None:
        for transfer in plan.transfers:
            self._transfer(transfer)
        for share in plan.scheduled:
            self._write(share)
            if self.num_failures:  # after some of the step was written
                self.num_failures -= 1
                raise FakeDeviceError
        if (error := self.fails_on(plan)) is not None:
            raise error

    def _choose(self, plan: SchedulerOutput, reads: Sequence[list[list[int | None]]]) -> dict[str, Sampled]:
        if self.chose_late[-1] and self.choosing_errors:
            raise self.choosing_errors.pop()
        results: dict[str, Sampled] = {}
        for share, read in zip(plan.scheduled, reads, strict=True):
            finite = [[token for token in one if token is not None] for one in read]
            if finite != read:
                results[share.request.request_id] = RequestError("numerical_error", "not finite")
            elif share.samples:
                results[share.request.request_id] = self._accepted(finite, share)
        return results

    def spoil(self, block_id: int, request: Request) -> None:
        """Make what a block holds not finite, and the latest step fail for a request, as faulty memory would."""
        size = self.config.block_size
        self.slots[block_id * size : (block_id + 1) * size] = [None] * size
        self._latest.sampled()[request.request_id] = RequestError("numerical_error", "not finite")

    def probe(self) -> None:
        if self.probe_fails:
            raise FakeDeviceError

    def scrub(self, block_ids: list[int]) -> None:
        self.scrubbed += block_ids
        for block_id in block_ids:
            size = self.config.block_size
            self.slots[block_id * size : (block_id + 1) * size] = [UNWRITTEN] * size

    def take_copy_times(self) -> Sequence[CopyTime]:
        times, self.copy_times = self.copy_times, []
        return times

    def _transfer(self, transfer: Transfer) -> None:
        size = self.config.block_size
        if isinstance(transfer, Spill):
            content = self.slots[transfer.block_id * size : (transfer.block_id + 1) * size]
            assert None not in content, "only what is finite goes to the host"
            self.host[transfer.slot] = content
            return
        target = transfer.target if isinstance(transfer, BlockCopy) else transfer.block_id
        content = (
            self.slots[transfer.source * size : (transfer.source + 1) * size]
            if isinstance(transfer, BlockCopy)
            else self.host[transfer.slot]
        )
        self.slots[target * size : (target + 1) * size] = content

    def _slots_of(self, share: ScheduledRequest, group: int, positions: range) -> list[int]:
        """Return the slots of positions in one KV group's table."""
        size, block_ids = self.config.block_size, share.request.block_tables[group].block_ids
        return [block_ids[position // size] * size + position % size for position in positions]

    def _write(self, share: ScheduledRequest) -> None:
        start = share.num_computed_tokens
        stop = start + share.num_scheduled_tokens
        token_ids = share.token_ids
        if share.has_pending_token:
            latest = self._latest.sampled()[share.request.request_id]
            token_ids[-1] = 0 if isinstance(latest, RequestError) else latest[-1]
        groups = range(len(self.config.windows))
        seen = [slot for g in groups for slot in self._slots_of(share, g, range(self._first_read(share, g), start))]
        finite = NAN_TOKEN not in token_ids and all(self.slots[slot] is not None for slot in seen)
        for group in groups:
            for slot, token in zip(self._slots_of(share, group, range(start, stop)), token_ids, strict=True):
                self.slots[slot] = stored(token, group) if finite else None

    def _first_read(self, share: ScheduledRequest, group: int) -> int:
        """Return the first position of the first block that the step's first token sees."""
        window, size = self.config.windows[group], self.config.block_size
        return 0 if window is None else max(0, share.num_computed_tokens - window + 1) // size * size

    def _read(self, share: ScheduledRequest) -> list[list[int | None]]:
        """Return what each group's table holds from the first block that is seen on."""
        size = self.config.block_size
        stop = -(-(share.num_computed_tokens + share.num_scheduled_tokens) // size) * size
        return [
            [self.slots[slot] for slot in self._slots_of(share, group, range(self._first_read(share, group), stop))]
            for group in range(len(self.config.windows))
        ]

    def _accepted(self, read: Sequence[Sequence[int]], share: ScheduledRequest) -> Sampled:
        """Return a share's next tokens, given what its tables hold, or what its grammar raises."""
        begins = [self._first_read(share, group) for group in range(len(self.config.windows))]
        request, windows = share.request, self.config.windows
        first = share.num_computed_tokens + share.num_known_tokens
        if request.state is RequestState.RUNNING:
            assert request.num_expected_tokens == first, "a token is chosen for its own position"
        grammar = None if request.state is RequestState.FINISHED else request.grammar
        output = request.output_token_ids
        tokens: list[int] = []
        for stop in range(first, first + len(share.draft) + 1):
            parts = (one[: stop - begin] for one, begin in zip(read, begins, strict=True))
            views = (visible(part, window) for part, window in zip(parts, windows, strict=True))
            context = [token for view in views for token in view]
            try:
                tokens.append(choice(context, request.params, [*output, *tokens], grammar))
            except RequestError as error:
                return error
            if tokens != list(share.draft[: len(tokens)]):
                break
        return tuple(tokens)
