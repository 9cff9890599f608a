"""`scripts/bench scheduler`: what a step costs without the model, by requests running and waiting."""

import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from engine.config import EngineConfig
from engine.detokenizing import Detokenizer
from engine.engine import Engine, ModelIdentity
from engine.offload_policy import CopyTime
from engine.request import SamplingParams
from engine.step_plan import Sampled, SchedulerOutput

MODEL = ModelIdentity(name="none", vocab_size=100, stop_token_ids=frozenset())
PROMPT_TOKENS = 800
MAX_TOKENS = 4_000  # more than the first request gets before the last one's time is taken
STEPS = 300
GOAL_MS = {32: 0.3, 256: 1.5}  # CPU time a step, by requests running


@dataclass(frozen=True, slots=True)
class StepCost:
    """The median CPU time of a step."""

    running: int
    waiting: int
    ms: float
    goal_ms: float | None


class NoModel:
    """A runner that answers at once: token 7 for everybody."""

    def __init__(self) -> None:
        self.seconds = 0.0  # of CPU time, its own

    def run(self, plan: SchedulerOutput) -> Mapping[str, Sampled]:
        begun = time.thread_time()
        results: dict[str, Sampled] = {share.request.request_id: (7,) for share in plan.scheduled if share.samples}
        self.seconds += time.thread_time() - begun
        return results

    def probe(self) -> None:
        pass

    def take_copy_times(self) -> Sequence[CopyTime]:
        return ()

    def scrub(self, block_ids: list[int]) -> None:
        pass


@click.command()
@click.option("--running", multiple=True, type=click.IntRange(1, 4096), default=(32, 256), help="May be repeated.")
@click.option("--waiting", multiple=True, type=click.IntRange(0, 1_000_000), default=(0, 1_000, 100_000))
@click.option("--json", "as_json", is_flag=True, help="One JSON line a measurement, no table.")
def scheduler(running: tuple[int, ...], waiting: tuple[int, ...], as_json: bool) -> None:
    """CPU time of a decoding step without the model: scheduling, blocks, accounts, and what becomes of each token.

    \b
    Example:
      scripts/bench scheduler --running 32 --waiting 0 --waiting 100000
    """
    costs = [_measure(one, others) for one in running for others in waiting]
    if as_json:
        for cost in costs:
            print(json.dumps(asdict(cost)))
        return
    table = Table("running", "waiting", "CPU ms a step", "goal")
    for cost in costs:
        goal = "" if cost.goal_ms is None else f"{cost.goal_ms}"
        table.add_row(f"{cost.running}", f"{cost.waiting:,}", f"{cost.ms:.3f}", goal)
    console = Console()
    console.print(table)
    console.print(f"median of {STEPS} steps; {platform.machine()}, Python {platform.python_version()}")


def _measure(running: int, waiting: int) -> StepCost:
    """Step until all of `running` decode, then time steps in which `waiting` others stand behind them."""
    config = EngineConfig(
        num_blocks=running * MAX_TOKENS // 16,
        max_model_len=MAX_TOKENS,
        max_num_seqs=running,
        token_budget=max(512, running),
    )
    runner = NoModel()
    engine = Engine(config, runner, MODEL, Detokenizer(lambda token_ids: ""))
    params = SamplingParams(max_tokens=MAX_TOKENS - PROMPT_TOKENS, ignore_eos=True)
    prompts = [[index % 90 + 1] * PROMPT_TOKENS for index in range(running)]
    for index in range(running + waiting):
        engine.add(str(index), prompts[index] if index < running else [5, 6, 7], params)
    while any(request.num_output_tokens == 0 for request in engine.scheduler.running) or (
        len(engine.scheduler.running) < running
    ):
        engine.step()
    times = []
    for _ in range(STEPS):
        begun, others = time.thread_time(), runner.seconds
        engine.step()
        times.append(time.thread_time() - begun - (runner.seconds - others))
    return StepCost(running, waiting, 1e3 * median(times), GOAL_MS.get(running))
