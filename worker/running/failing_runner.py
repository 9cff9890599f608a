"""A model runner that fails on purpose, in the steps that its failpoints ask for. No production worker has one."""

from collections.abc import Sequence

import torch

from engine.detokenizing import Detokenizer
from engine.model_runner import ModelRunner
from engine.offload_policy import CopyTime
from engine.quarantine import DeviceOutOfMemory
from engine.request import Request
from engine.step_plan import Launched, SchedulerOutput
from worker.running.failpoints import Action, Failpoints, Fault, Point


class FailingRunner:
    """Wraps a model runner: the point `in_step` is reached before each step that it computes."""

    def __init__(self, runner: ModelRunner, faults: tuple[Fault, ...], detokenize: Detokenizer) -> None:
        self._runner = runner
        self._detokenize = detokenize
        self._plan = SchedulerOutput((), 0, ())
        self._markers: dict[str, frozenset[str]] = {}  # by request id, of the requests of the last step
        self._failpoints = Failpoints(faults, {Action.OOM: self._run_out_of_memory, Action.NAN: self._write_nan})

    def launch(self, plan: SchedulerOutput) -> Launched:
        self._plan = plan
        self._markers = {request.request_id: self._find_markers(request) for request in plan.requests}
        self._failpoints.reach(Point.IN_STEP, frozenset().union(*self._markers.values()))
        return self._runner.launch(plan)

    def probe(self) -> None:
        """Fail as a step would in which no prompt has a marker."""
        self._failpoints.reach(Point.IN_STEP)
        self._runner.probe()

    def take_copy_times(self) -> Sequence[CopyTime]:
        return self._runner.take_copy_times()

    def scrub(self, block_ids: list[int]) -> None:
        self._runner.scrub(block_ids)

    def _find_markers(self, request: Request) -> frozenset[str]:
        if request.request_id in self._markers:
            return self._markers[request.request_id]
        wanted = self._failpoints.markers(Point.IN_STEP)
        prompt = self._detokenize(request.token_ids[: request.num_prompt_tokens]) if wanted else ""
        return frozenset(marker for marker in wanted if marker in prompt)

    def _run_out_of_memory(self) -> None:
        raise DeviceOutOfMemory("failpoint in_step: the device is out of memory")

    def _write_nan(self) -> None:
        """Spoil the block of the newest computed token of each marked request, as faulty memory would."""
        for share in self._plan.scheduled:
            if share.num_computed_tokens and self._markers[share.request.request_id]:
                block = (share.num_computed_tokens - 1) // self._runner.cache.shape.block_size
                caches, scales = self._runner.cache.layer(0)
                table = share.request.block_tables[self._runner.cache.groups[0]]
                for cache in caches if scales is None else (scales.key, scales.value):
                    cache[table.block_ids[block]] = torch.nan
