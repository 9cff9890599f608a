"""The page's section of jobs, phase by phase."""

from collections.abc import Sequence

from worker.reports.html.page import Section
from worker.reports.html.rows import JobBar, PhaseBar, waterfall
from worker.reports.phases import Phase, phases_of
from worker.reports.tables import title_of
from worker.reports.units import readable, unit_of
from worker.sql.reporting import SlowJob

STYLES = {
    Phase.QUEUED: "slate",
    Phase.TOKENIZED: "amber",
    Phase.ADMITTED: "red",
    Phase.PREFILL: "teal",
    Phase.DECODE: "blue",
    Phase.RUNNING: "blue",
    Phase.COMMITTED: "violet",
}
NAMES = {
    Phase.QUEUED: "in the queue",
    Phase.TOKENIZED: "tokenizing",
    Phase.ADMITTED: "waiting for blocks",
    Phase.PREFILL: "first token",
    Phase.DECODE: "output",
    Phase.RUNNING: "running",
    Phase.COMMITTED: "commit",
}
FACTS = (
    *(
        "state",
        "error_code",
        "attempts",
        "queue",
        "tenant",
        "model",
        "batch_id",
        "custom_id",
        "worker_name",
        "ended_at",
    ),
    *("prompt_tokens", "prefix_hit_tokens", "completion_tokens"),
)


def jobs_section(title: str, jobs: Sequence[SlowJob]) -> Section:
    """Return jobs as bars of their phases; each opens to its figures."""
    return Section(
        id="jobs",
        title=title,
        lead="From submission to commit, phase by phase. A row opens to its figures.",
        empty="No job has ended with figures.",
        charts=(waterfall("Phases", [_bar(job) for job in jobs]),) if jobs else (),
    )


def _bar(job: SlowJob) -> JobBar:
    phases = tuple(PhaseBar(NAMES[span.phase], STYLES[span.phase], span.length_ms) for span in phases_of(job))
    facts = tuple(
        (title_of(name), readable(value, unit_of(name))) for name in FACTS if (value := getattr(job, name)) is not None
    )
    return JobBar(job.job_id, phases, facts)
