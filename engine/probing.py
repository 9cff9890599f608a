"""One request in a step of its own, outside any engine: to try a model at load, and after a step that failed."""

from collections.abc import Sequence

from engine.request import BlockTable, Request, RequestFigures, SamplingParams
from engine.step_plan import ScheduledRequest, SchedulerOutput


def probe_request(token_ids: Sequence[int], places: Sequence[int], num_groups: int = 1) -> Request:
    """Return a request whose prompt is `token_ids`, with blocks in each of `num_groups` KV groups: those of a place are
    the `num_groups` blocks from place * num_groups on."""
    return Request(
        request_id="probe",
        tenant="",
        token_ids=list(token_ids),
        num_prompt_tokens=len(token_ids),
        params=SamplingParams(max_tokens=1),
        stop_ids=frozenset(),
        figures=RequestFigures(arrived_at=0.0),
        block_tables=[BlockTable([place * num_groups + group for place in places]) for group in range(num_groups)],
    )


def plan_of(request: Request, start: int, stop: int) -> SchedulerOutput:
    """Return the step that computes a request's tokens [start, stop), and nothing else."""
    return SchedulerOutput((ScheduledRequest(request, start, stop - start),), stop - start, ())
