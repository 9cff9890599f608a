"""Jobs that read the outputs of others: how a prompt gets them once these have ended."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from worker.errors import InvalidJob
from worker.jobs import IDENTIFIER, PromptJob
from worker.records import TERMINAL_STATES, JobState

INPUT_FAILED = "input_failed"
INPUTS_PENDING = "inputs_pending"

_MARKER = re.compile(rf"\{{output:({IDENTIFIER})\}}")


@dataclass(frozen=True, slots=True)
class InputEnd:
    """How a job stands in SQL: its output where it is done, its error where it failed."""

    tenant: str | None
    state: JobState
    text: str | None
    error: str | None


def filled(job: PromptJob, ends: Mapping[str, InputEnd]) -> PromptJob:
    """Return the job with the outputs of its inputs in its texts. Markers within an output are left as they are.

    Raises InvalidJob with the code `inputs_pending` while one has not ended (RQ holds such a job back; after Redis was
    lost it may come early), and with `input_failed` where one is not done, unknown, or another tenant's.
    """
    if not job.inputs:
        return job
    outputs = {job_id: _output(job, job_id, ends.get(job_id)) for job_id in job.inputs}

    def fill(text: str) -> str:
        return _MARKER.sub(lambda found: outputs.get(found[1], found[0]), text)

    if job.prompt is not None:
        return job.model_copy(update={"prompt": fill(job.prompt)})
    messages = tuple(
        message if message.content is None else message.model_copy(update={"content": fill(message.content)})
        for message in job.messages or ()
    )
    return job.model_copy(update={"messages": messages})


def _output(job: PromptJob, job_id: str, end: InputEnd | None) -> str:
    if end is None or end.tenant != job.tenant:
        raise InvalidJob("inputs", f"the tenant {job.tenant} has no job {job_id}", code=INPUT_FAILED)
    if end.state not in TERMINAL_STATES:
        raise InvalidJob("inputs", f"the job {job_id} has not ended yet", code=INPUTS_PENDING)
    if end.state is not JobState.DONE or end.text is None:
        reason = f": {end.error}" if end.error else ""
        raise InvalidJob("inputs", f"the job {job_id} is {end.state.value}{reason}", code=INPUT_FAILED)
    return end.text
