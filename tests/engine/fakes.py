"""A torch-free runner with a real KV, so that a leaked, stale or wrongly shared block shows as a wrong token."""

import random
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine, ModelIdentity
from engine.forking import BlockCopy
from engine.host_tier import Spill
from engine.offload_policy import CopyTime
from engine.offloading import Transfer
from engine.request import FinishReason, Request, RequestError, RequestFigures, SamplingParams
from engine.speculation.speculator import Drafter, Speculator
from engine.step_plan import Computed, Drafts, Launched, Sampled, ScheduledRequest, SchedulerOutput

VOCAB_SIZE = 32
EOS = 0
NAN_TOKEN = VOCAB_SIZE - 1  # a prompt may hold it; it is never generated. Its KV, and all KV after it, is not finite
UNWRITTEN = -1  # finite, and the token of no slot
TOKEN_TEXTS = tuple("abcdefgh"[token % 8] + ("xyz"[token % 3] if token % 2 else "") for token in range(VOCAB_SIZE))

MODEL = ModelIdentity(name="fake", vocab_size=VOCAB_SIZE, stop_token_ids=frozenset({EOS}))


class FakeDeviceError(Exception):
    """What the runner raises when told to."""


class FakeClock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FailedLate:
    """A step that a device computed, or did not: it raises when it is waited for."""

    def results(self) -> Mapping[str, Sampled]:
        raise FakeDeviceError


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

    def __post_init__(self) -> None:
        self.slots = [UNWRITTEN] * (self.config.num_blocks * self.config.block_size)
        self._latest: dict[str, Sampled] = {}

    def launch(self, plan: SchedulerOutput) -> Launched:
        """Run a step; one that is to fail late says so when its results are asked for."""
        results = self._latest = self._run(plan)
        if self.num_late_failures:
            self.num_late_failures -= 1
            return FailedLate()
        return Computed(results)

    def _run(self, plan: SchedulerOutput) -> dict[str, Sampled]:
        self.plans.append(plan)
        self.on_run()
        for transfer in plan.transfers:
            self._transfer(transfer)
        for share in plan.scheduled:
            self._write(share)
            if self.num_failures:  # after some of the step was written
                self.num_failures -= 1
                raise FakeDeviceError
        if (error := self.fails_on(plan)) is not None:
            raise error
        results: dict[str, Sampled] = {}
        for share in plan.scheduled:
            read = self._read(share)
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
        self._latest[request.request_id] = RequestError("numerical_error", "not finite")

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
            latest = self._latest[share.request.request_id]
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

    def _accepted(self, read: Sequence[Sequence[int]], share: ScheduledRequest) -> tuple[int, ...]:
        """Return a share's next tokens, given what its tables hold."""
        begins = [self._first_read(share, group) for group in range(len(self.config.windows))]
        seed, windows = share.request.params.seed, self.config.windows
        tokens: list[int] = []
        first = share.num_computed_tokens + share.num_known_tokens
        for stop in range(first, first + len(share.draft) + 1):
            parts = (one[: stop - begin] for one, begin in zip(read, begins, strict=True))
            views = (visible(part, window) for part, window in zip(parts, windows, strict=True))
            tokens.append(next_token([token for view in views for token in view], seed))
            if tokens != list(share.draft[: len(tokens)]):
                break
        return tuple(tokens)


def stored(token: int, group: int) -> int:
    """Return what a KV group stores of a token: no other group's is mistaken for it."""
    return token + group * VOCAB_SIZE


def visible(context: Sequence[int], window: int | None) -> Sequence[int]:
    """Return what the newest token sees."""
    return context if window is None else context[-window:]


def next_token(context: Sequence[int], seed: int = 0) -> int:
    """Return the fake model's continuation of what its groups see."""
    return zlib.crc32(array("q", context).tobytes(), seed) % NAN_TOKEN


def continuation(token_ids: Sequence[int], seed: int = 0, windows: Sequence[int | None] = (None,)) -> int:
    """Return the fake model's continuation of known tokens."""
    return next_token(
        [stored(token, group) for group, window in enumerate(windows) for token in visible(token_ids, window)], seed
    )


def text_of(token_ids: Sequence[int]) -> str:
    """Return a text of one or two letters a token."""
    return "".join(TOKEN_TEXTS[token] for token in token_ids)


detokenize = Detokenizer(text_of)


def generate_alone(
    prompt: Sequence[int], params: SamplingParams, windows: Sequence[int | None] = (None,)
) -> tuple[list[int], FinishReason]:
    """Return what a request must produce, computed without blocks, batches or the code under test."""
    if NAN_TOKEN in prompt:
        return [], FinishReason.ERROR
    stop_ids = set(params.stop_token_ids) | (set() if params.ignore_eos else {EOS})
    output: list[int] = []
    while True:
        old_length = len(detokenize(output))
        output.append(continuation([*prompt, *output], params.seed, windows))
        text = detokenize(output)
        if len(output) >= params.min_tokens:
            if output[-1] in stop_ids:
                return output, FinishReason.STOP
            if any(text.endswith(stop, 0, end) for stop in params.stop for end in range(old_length + 1, len(text) + 1)):
                return output, FinishReason.STOP_STRING
        if len(output) == params.max_tokens:
            return output, FinishReason.LENGTH


def make_config(**changes: Any) -> EngineConfig:
    """Return a small configuration."""
    values: dict[str, Any] = {
        "num_blocks": 32,
        "max_model_len": 64,
        "block_size": 4,
        "max_num_seqs": 8,
        "token_budget": 16,
    }
    return EngineConfig(**(values | changes))


class RandomDrafts:
    """A speculator that is right as often as not, and at times proposes what the model cannot compute."""

    def __init__(self, seed: int, windows: Sequence[int | None] = (None,)) -> None:
        self._random = random.Random(seed)
        self._windows = windows

    def propose(self, decoding: Sequence[Request], room: int) -> Drafts:
        drafts = {request.request_id: self._draft(request) for request in decoding if request.may_draft}
        kept = {}
        for request_id, draft in drafts.items():
            kept[request_id] = draft[: max(0, room)]
            room -= len(draft)
        return kept

    def _draft(self, request: Request) -> tuple[int, ...]:
        draft: list[int] = []
        for _ in range(self._random.randint(0, 5)):
            right = continuation([*request.token_ids, *draft], request.params.seed, self._windows)
            draft.append(right if self._random.random() < 0.8 else self._random.randint(0, NAN_TOKEN))
        return tuple(draft)

    def observe(self, plan: SchedulerOutput, seconds: float) -> None:
        assert seconds >= 0.0


class EagerSpeculation:
    """Drafts as many tokens as there are offers for, whether it pays or not."""

    def __init__(self, drafter: Drafter, max_draft_tokens: int) -> None:
        self.drafter = drafter
        self._max_draft_tokens = max_draft_tokens

    def propose(self, decoding: Sequence[Request], room: int) -> Drafts:
        self.drafter.retain({request.request_id for request in decoding})
        wanted: dict[str, int] = {}
        for request in decoding:
            most = min(self._max_draft_tokens, request.params.max_tokens - request.num_output_tokens - 1)
            if most > 0 and (offer := self.drafter.offer(request, most)) is not None:
                wanted[request.request_id] = offer.num_tokens
        return self.drafter.draft(wanted, {request.request_id: request for request in decoding})

    def observe(self, plan: SchedulerOutput, seconds: float) -> None:
        pass


@dataclass
class Harness:
    """An engine on the fake runner, which checks its integrity after every step."""

    config: EngineConfig
    speculator: Speculator | None = None
    clock: FakeClock = field(default_factory=FakeClock)
    runner: FakeRunner = field(init=False)
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.runner = FakeRunner(self.config)
        self.engine = Engine(self.config, self.runner, MODEL, detokenize, self.clock, self.speculator)

    def add(self, request_id: str, prompt: Iterable[int], params: SamplingParams, tenant: str = "") -> Request:
        return self.engine.add(request_id, list(prompt), params, tenant=tenant)

    def step(self) -> list[Request]:
        finished = self.engine.step()
        self.engine.lineup.check_integrity()
        return finished

    def run(self, max_steps: int = 2000) -> dict[str, Request]:
        """Step until nothing is left; returns what finished, by id."""
        finished: dict[str, Request] = {}
        for _ in range(max_steps):
            if not self.engine.has_work:
                return finished
            finished |= {request.request_id: request for request in self.step()}
        raise AssertionError(f"unfinished after {max_steps} steps: {sorted(self.engine.lineup.unfinished)}")

    def assert_idle(self) -> None:
        """Every block is back and nothing waits."""
        status = self.engine.status()
        assert (status.num_waiting, status.num_running, status.blocks_held) == (0, 0, 0)


def make_harness(**changes: Any) -> Harness:
    """Return an engine with a small configuration."""
    return Harness(make_config(**changes))


def make_request(
    prompt: Iterable[int] = (1, 2, 3),
    output: Iterable[int] = (),
    *,
    request_id: str = "r",
    tenant: str = "",
    **params: Any,
) -> Request:
    """Return a request that already has some output, outside any engine."""
    token_ids = list(prompt)
    num_prompt_tokens = len(token_ids)
    sampling = SamplingParams(**({"max_tokens": 16} | params))
    return Request(
        request_id=request_id,
        tenant=tenant,
        token_ids=[*token_ids, *output],
        num_prompt_tokens=num_prompt_tokens,
        params=sampling,
        stop_ids=sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else MODEL.stop_token_ids),
        figures=RequestFigures(arrived_at=0.0),
    )


def assert_as_alone(request: Request, windows: Sequence[int | None] = (None,)) -> None:
    """A finished request's output and reason are those it has when it runs alone."""
    prompt = request.token_ids[: request.num_prompt_tokens]
    assert (request.output_token_ids, request.finish_reason) == generate_alone(prompt, request.params, windows)
