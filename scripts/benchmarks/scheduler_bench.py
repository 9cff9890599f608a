"""`scripts/bench scheduler`: what a step costs without the model, by requests running and waiting, and how long a
device waits for it."""

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine, ModelIdentity
from engine.offload_policy import CopyTime
from engine.request import SamplingParams
from engine.step_plan import Computed, Launched, Sampled, SchedulerOutput
from engine.stepping import Runner

MODEL = ModelIdentity(name="none", vocab_size=100, stop_token_ids=frozenset())
PROMPT_TOKENS = 800
MAX_TOKENS = 4_000  # more than the first request gets before the last one's time is taken
STEPS = 300
GOAL_MS = {32: 0.3, 256: 1.5}  # CPU time a step, by requests running


@dataclass(frozen=True, slots=True)
class StepCost:
    """The median CPU time of a step, and the part of the time that a device, which takes `device_ms` for each, has
    nothing to do: with steps in turn; with asynchronous scheduling; and with that where one request has a penalty, so
    that each step chooses its tokens when those of the one before it are known."""

    running: int
    waiting: int
    ms: float
    ms_ahead: float
    goal_ms: float | None
    device_ms: float
    idle_in_turn: float
    idle_ahead: float
    idle_choosing_late: float


class NoModel:
    """A runner that answers at once: token 7 for everybody."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of CPU time, its own

    def launch(self, plan: SchedulerOutput) -> Launched:
        begun = time.thread_time()
        results = sevens(plan)
        self.seconds += time.thread_time() - begun
        return Computed(results)

    def probe(self) -> None:
        pass

    def take_copy_times(self) -> Sequence[CopyTime]:
        return ()

    def scrub(self, block_ids: list[int]) -> None:
        pass


class SimulatedDevice(NoModel):
    """A device that works beside the CPU, one step after the other, each for as long. To choose takes it no time, but
    nothing after that can begin before."""

    def __init__(self, step_seconds: float) -> None:
        super().__init__()
        self._step_seconds = step_seconds
        self.free_at = time.perf_counter()  # when all that it has been given to do is done
        self.idle_seconds = 0.0

    def launch(self, plan: SchedulerOutput) -> Launched:
        self.wait_for_host()
        self.free_at += self._step_seconds
        step = _StepOfDevice(self, sevens(plan))
        if not plan.chooses_late:
            step.choose()
        return step

    def wait_for_host(self) -> None:
        """Note that it has had nothing to do since it was free, if it was."""
        now = time.perf_counter()
        self.idle_seconds += max(0.0, now - self.free_at)
        self.free_at = max(now, self.free_at)


class _StepOfDevice:
    def __init__(self, device: SimulatedDevice, sampled: Mapping[str, Sampled]) -> None:
        self._device = device
        self._sampled = sampled
        self._ends_at: float | None = None  # as time.perf_counter has it; None before it chooses

    def choose(self) -> None:
        if self._ends_at is None:
            self._device.wait_for_host()
            self._ends_at = self._device.free_at

    def results(self) -> Mapping[str, Sampled]:
        assert self._ends_at is not None, "a step chooses before it is waited for"
        time.sleep(max(0.0, self._ends_at - time.perf_counter()))
        return self._sampled


def sevens(plan: SchedulerOutput) -> dict[str, Sampled]:
    return {share.request.request_id: (7,) for share in plan.scheduled if share.samples}


@click.command()
@click.option("--running", multiple=True, type=click.IntRange(1, 4096), default=(32, 256), help="May be repeated.")
@click.option("--waiting", multiple=True, type=click.IntRange(0, 1_000_000), default=(0, 1_000, 100_000))
@click.option(
    "--device-ms",
    type=click.FloatRange(0.1, 1000.0),
    default=5.0,
    show_default=True,
    help="What a step takes on the simulated device.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON line a measurement, no table.")
def scheduler(running: tuple[int, ...], waiting: tuple[int, ...], device_ms: float, as_json: bool) -> None:
    """CPU time of a decoding step without the model: scheduling, blocks, accounts, and what becomes of each token.

    And the part of its time that a device would wait for that, with steps in turn, planned ahead, and planned ahead
    where one request has a penalty: a simulated one, whose steps are launched, and choose, for nothing.

    \b
    Example:
      scripts/bench scheduler --running 32 --waiting 0 --waiting 100000
    """
    costs = [_measure(one, others, device_ms) for one in running for others in waiting]
    if as_json:
        for cost in costs:
            print(json.dumps(asdict(cost)))
        return
    table = Table("running", "waiting", "CPU ms a step", "ahead", "goal", "device idle", "ahead", "with a penalty")
    for cost in costs:
        goal = "" if cost.goal_ms is None else f"{cost.goal_ms}"
        idle = (f"{share:.1%}" for share in (cost.idle_in_turn, cost.idle_ahead, cost.idle_choosing_late))
        ms = (f"{cost.ms:.3f}", f"{cost.ms_ahead:.3f}")
        table.add_row(f"{cost.running}", f"{cost.waiting:,}", *ms, goal, *idle)
    console = Console()
    console.print(table)
    console.print(
        f"median of {STEPS} steps; device: simulated, {device_ms:g} ms a step; "
        f"{platform.machine()}, Python {platform.python_version()}"
    )


def _measure(running: int, waiting: int, device_ms: float) -> StepCost:
    return StepCost(
        running,
        waiting,
        ms=_step_ms(running, waiting, async_scheduling=False),
        ms_ahead=_step_ms(running, waiting, async_scheduling=True),
        goal_ms=GOAL_MS.get(running),
        device_ms=device_ms,
        idle_in_turn=_idle_share(running, waiting, device_ms / 1e3, async_scheduling=False),
        idle_ahead=_idle_share(running, waiting, device_ms / 1e3, async_scheduling=True),
        idle_choosing_late=_idle_share(running, waiting, device_ms / 1e3, async_scheduling=True, num_penalized=1),
    )


def _step_ms(running: int, waiting: int, *, async_scheduling: bool) -> float:
    """Return the median CPU time of a step, in ms."""
    runner = NoModel()
    engine = _decoding(runner, running, waiting, async_scheduling=async_scheduling)
    times = []
    for _ in range(STEPS):
        begun, others = time.thread_time(), runner.seconds
        engine.step()
        times.append(time.thread_time() - begun - (runner.seconds - others))
    return 1e3 * median(times)


def _idle_share(
    running: int, waiting: int, step_seconds: float, *, async_scheduling: bool, num_penalized: int = 0
) -> float:
    """Return the part of the time that the device had nothing to do."""
    device = SimulatedDevice(step_seconds)
    engine = _decoding(device, running, waiting, async_scheduling=async_scheduling, num_penalized=num_penalized)
    begun, device.idle_seconds = time.perf_counter(), 0.0
    for _ in range(STEPS):
        engine.step()
    return device.idle_seconds / (time.perf_counter() - begun)


def _decoding(
    runner: Runner, running: int, waiting: int, *, async_scheduling: bool = False, num_penalized: int = 0
) -> Engine:
    """Return an engine in which `running` requests decode, so many of them with a penalty, and `waiting` others stand
    behind them."""
    config = EngineConfig(
        num_blocks=running * MAX_TOKENS // 16,
        max_model_len=MAX_TOKENS,
        max_num_seqs=running,
        token_budget=max(512, running),
        async_scheduling=async_scheduling,
    )
    engine = Engine(config, runner, MODEL, Detokenizer(lambda token_ids: ""))
    params = SamplingParams(max_tokens=MAX_TOKENS - PROMPT_TOKENS, ignore_eos=True)
    prompts = [[index % 90 + 1] * PROMPT_TOKENS for index in range(running)]
    penalized = replace(params, presence_penalty=0.5)
    for index in range(running + waiting):
        prompt = prompts[index] if index < running else [5, 6, 7]
        engine.add(str(index), prompt, penalized if index < num_penalized else params)
    while any(request.num_output_tokens == 0 for request in engine.lineup.running) or (
        len(engine.lineup.running) < running
    ):
        engine.step()
    return engine
