"""Random lives of an engine: whatever happens, each request's output is the one it has alone, no block is lost, and the
ledger adds up."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.forking import Output
from engine.offload_policy import CopyTime, Direction
from engine.request import FinishReason, Request, RequestError, RequestState, SamplingParams
from tests.engine.fake_model import NAN_TOKEN, VOCAB_SIZE, FakeGrammar, generate_alone
from tests.engine.fake_runner import FakeDeviceError
from tests.engine.fake_speculation import RandomDrafts
from tests.engine.fakes import Harness, assert_as_alone, make_config
from tests.engine.ledger_oracle import LedgerOracle

PREFIXES = ((), (1, 2, 3, 4), (1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), (9, 8, 7, 6, 5))
STOPS = ((), ("a",), ("bx", "gh"), ("cz", "d"))
ENDS = frozenset({5, 6, 7})

params = st.builds(
    lambda max_tokens, min_tokens, **others: SamplingParams(
        max_tokens=max_tokens, min_tokens=min(min_tokens, max_tokens), **others
    ),
    max_tokens=st.integers(1, 14),
    min_tokens=st.sampled_from((0, 0, 3)),
    stop=st.sampled_from(STOPS),
    stop_token_ids=st.sampled_from((frozenset(), ENDS)),
    ignore_eos=st.booleans(),
    seed=st.integers(0, 3),
    presence_penalty=st.sampled_from((0.0, 0.0, 0.0, 0.5)),
)
grammars = st.none() | st.none() | st.builds(FakeGrammar, ends=st.just(ENDS), fails_at=st.none() | st.integers(0, 9))


class EngineMachine(RuleBasedStateMachine):
    """Adds, steps, aborts and failures in any order over a pool too small for all."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = Harness(make_config())
        self.oracle = LedgerOracle(self.harness)
        self.unfinished: dict[str, Request] = {}
        self.groups: list[tuple[Request, ...]] = []
        self.num_added = 0

    @initialize(
        num_blocks=st.integers(2, 14),
        block_size=st.integers(1, 4),
        max_num_seqs=st.integers(1, 5),
        spare_budget=st.integers(0, 12),
        caching=st.sampled_from((True, True, True, False)),
        drafts=st.sampled_from((None, None, None, 1, 2)),
        windows=st.sampled_from(((None,), (None,), (1,), (3,), (8,), (None, 3), (None, 5, 5), (2, 8), (8, None, 1))),
        num_host_blocks=st.sampled_from((0, 0, 1, 3, 20)),
        async_scheduling=st.sampled_from((False, True, True)),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        spare_budget: int,
        caching: bool,
        drafts: int | None,
        windows: tuple[int | None, ...],
        num_host_blocks: int,
        async_scheduling: bool,
    ) -> None:
        self.harness = Harness(
            make_config(
                num_blocks=num_blocks,
                block_size=block_size,
                max_num_seqs=max_num_seqs,
                token_budget=max_num_seqs + spare_budget,
                enable_prefix_caching=caching,
                windows=windows,
                num_host_blocks=num_host_blocks,
                async_scheduling=async_scheduling,
            ),
            None if drafts is None else RandomDrafts(drafts, windows),
        )
        self.oracle = LedgerOracle(self.harness)
        self.harness.runner.on_run = lambda: self.oracle.tick(0.7)

    @rule(
        prefix=st.sampled_from(PREFIXES),
        suffix=st.lists(st.integers(0, NAN_TOKEN - 1), max_size=6),
        params=params,
        tenant=st.sampled_from(("", "", "other")),
        grammar=grammars,
    )
    def add(
        self,
        prefix: tuple[int, ...],
        suffix: list[int],
        params: SamplingParams,
        tenant: str,
        grammar: FakeGrammar | None,
    ) -> None:
        self._add([*prefix, *suffix], params, tenant, grammar)

    @rule(prefix=st.sampled_from(PREFIXES), suffix=st.lists(st.integers(0, NAN_TOKEN - 1), max_size=6), params=params)
    def add_one_that_is_not_finite(self, prefix: tuple[int, ...], suffix: list[int], params: SamplingParams) -> None:
        # Where windows hide it from what comes later, another with the same beginning may rightly get on.
        is_seen_on = None in self.harness.config.windows
        self._add([*prefix, NAN_TOKEN, *(suffix if is_seen_on else ())], params, "")

    def _add(self, prompt: list[int], params: SamplingParams, tenant: str, grammar: FakeGrammar | None = None) -> None:
        request_id = str(self.num_added)
        self.num_added += 1
        config = self.harness.config
        if prompt and len(prompt) + params.max_tokens <= config.longest_sequence:
            self.unfinished[request_id] = self.harness.add(request_id, prompt, params, tenant, grammar)
            self.oracle.requests.append(self.unfinished[request_id])
            return
        with pytest.raises(RequestError) as raised:
            self.harness.add(request_id, prompt, params, tenant, grammar)
        assert raised.value.code in {"empty_prompt", "context_length", "kv_capacity"}

    @rule(
        prefix=st.sampled_from(PREFIXES),
        suffix=st.lists(st.integers(0, NAN_TOKEN), max_size=6),
        outputs=st.lists(st.builds(Output, params, grammars), min_size=1, max_size=4),
    )
    def add_group(self, prefix: tuple[int, ...], suffix: list[int], outputs: list[Output]) -> None:
        request_id = str(self.num_added)
        self.num_added += 1
        config = self.harness.config
        if None not in config.windows:
            suffix = [token for token in suffix if token != NAN_TOKEN]
        prompt = [*prefix, *suffix]
        worst = len(prompt) + max(output.params.max_tokens for output in outputs)
        if prompt and worst <= config.longest_sequence:
            requests = self.harness.engine.add_group(request_id, prompt, outputs)
            assert [Output(request.params, request.grammar) for request in requests] == outputs
            self.unfinished |= {request.request_id: request for request in requests}
            self.oracle.requests += requests
            self.groups.append(requests)
            return
        with pytest.raises(RequestError):
            self.harness.engine.add_group(request_id, prompt, outputs)

    @rule(count=st.integers(1, 4))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.oracle.tick(1.0)
            for request in self.harness.step():
                assert self.unfinished.pop(request.request_id) is request
                self.check_finished(request)

    @precondition(lambda self: self.unfinished)
    @rule(is_late=st.booleans())
    def step_that_fails(self, is_late: bool) -> None:
        """One step that fails, out of the blue: a second failure alone would rightly end a request. It may be noticed
        only with the step after it."""
        runner = self.harness.runner
        runner.num_failures, runner.num_late_failures = (0, 1) if is_late else (1, 0)
        finished = self.harness.step()
        has_failed = not (runner.num_failures or runner.num_late_failures)
        if is_late and has_failed and self.harness.config.async_scheduling:
            finished += self.harness.step()
        runner.num_failures = runner.num_late_failures = 0
        if has_failed and not is_late:
            self.check_all_start_over()
        self.check_after_failure(finished)

    @precondition(lambda self: self.unfinished)
    @rule()
    def step_that_cannot_choose(self) -> None:
        """One step whose forward went well ahead of another, and that then fails; if there is such a step."""
        errors = self.harness.runner.choosing_errors
        errors.append(FakeDeviceError())
        finished = self.harness.step()
        if not errors:
            self.check_all_start_over()
        errors.clear()
        self.check_after_failure(finished)

    def check_all_start_over(self) -> None:
        status = self.harness.engine.status()
        assert (status.num_running, status.blocks_held, status.blocks_cached) == (0, 0, 0)

    def check_after_failure(self, finished: list[Request]) -> None:
        for request in finished:
            assert self.unfinished.pop(request.request_id) is request
            if request.error is None or request.error.code != "step_failed":
                self.check_finished(request)

    @precondition(lambda self: self.unfinished)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.unfinished)))
        request = self.unfinished[request_id]
        if request.state is RequestState.FINISHED:  # in a step that was settled; the next one returns it
            assert self.harness.engine.abort(request_id) is None
            return
        aborted = self.harness.engine.abort(request_id)
        if aborted is None:  # it ended in the step that was under way
            assert self.harness.config.async_scheduling
            return
        assert aborted is self.unfinished.pop(request_id)
        assert request.finish_reason is FinishReason.CANCELLED
        prompt = request.token_ids[: request.num_prompt_tokens]
        alone, _ = generate_alone(prompt, request.params, self.harness.config.windows, request.grammar)
        assert alone[: request.num_output_tokens] == request.output_token_ids

    @rule(direction=st.sampled_from(Direction), seconds=st.sampled_from((0.0, 1.0, 1e6)))
    def measure_copies(self, direction: Direction, seconds: float) -> None:
        """Whatever copies take, it only decides what is copied."""
        self.harness.runner.copy_times.append(CopyTime(direction, 1, seconds))

    @rule()
    def wait(self) -> None:
        """What a loop does that has nothing to do, or whose work comes late."""
        self.oracle.tick(1.3)
        self.harness.engine.settle()
        self.harness.engine.ledger.charge_idleness()

    @rule()
    def check_ledger(self) -> None:
        self.oracle.check()

    def check_finished(self, request: Request) -> None:
        assert request.state is RequestState.FINISHED
        assert request.block_tables == []
        assert_as_alone(request, self.harness.config.windows)
        figures = request.figures
        assert len(figures.token_times) == request.num_output_tokens
        assert figures.admitted_at is not None
        assert figures.finished_at is not None
        assert figures.arrived_at <= figures.admitted_at <= figures.finished_at
        assert 0 < figures.kv_blocks_peak <= self.harness.config.num_blocks
        assert figures.prefix_hit_tokens < request.num_prompt_tokens

    @invariant()
    def is_sound(self) -> None:
        self.harness.engine.lineup.check_integrity()
        going_on = {key for key, request in self.unfinished.items() if request.state is not RequestState.FINISHED}
        assert set(self.harness.engine.lineup.unfinished) == going_on
        pool = self.harness.engine.scheduler.cache.pool
        size = self.harness.config.block_size
        for block_id in range(pool.num_blocks):
            assert not pool.is_free(block_id) or None not in self.harness.runner.slots[block_id * size :][:size]

    @invariant()
    def groups_count_shared_blocks_once(self) -> None:
        for requests in self.groups:
            group = requests[0].group
            assert group is not None
            held = Counter(block_id for request in requests for block_id in request.held_block_ids)
            assert group.figures.holders == held
            assert len(held) <= group.figures.kv_blocks_peak or not held

    def teardown(self) -> None:
        most_tokens = len(self.unfinished) * (max(map(len, PREFIXES)) + VOCAB_SIZE)
        for _ in range(10 * most_tokens):
            self.step(1)
            if not self.unfinished:
                break
        assert not self.unfinished
        self.harness.assert_idle()
        self.oracle.check()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(
    max_examples=200, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
