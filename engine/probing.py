"""One request in a step of its own, outside any engine: to try a model at load, and after a step that failed."""

from collections.abc import Sequence

from engine.request import Request, RequestFigures, SamplingParams
from engine.step_plan import ScheduledRequest, SchedulerOutput


def probe_request(token_ids: Sequence[int], block_ids: Sequence[int]) -> Request:
    """Return a request whose prompt is `token_ids`, with its blocks."""
    return Request(
        request_id="probe",
        tenant="",
        token_ids=list(token_ids),
        num_prompt_tokens=len(token_ids),
        params=SamplingParams(max_tokens=1),
        stop_ids=frozenset(),
        figures=RequestFigures(arrived_at=0.0),
        block_ids=list(block_ids),
    )


def plan_of(request: Request, start: int, stop: int) -> SchedulerOutput:
    """Return the step that computes a request's tokens [start, stop), and nothing else."""
    return SchedulerOutput((ScheduledRequest(request, start, stop - start),), stop - start, ())
