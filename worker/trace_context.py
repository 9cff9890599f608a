"""A producer's trace, taken over from its job: W3C's `traceparent` in the job's metadata, or in RQ's meta.

https://www.w3.org/TR/trace-context/#traceparent-header
"""

import re
from dataclasses import dataclass

from worker.jobs import PromptJob
from worker.records import Claim

KEY = "traceparent"  # in the metadata of a job, or in RQ's meta

_TRACE_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})")
_SAMPLED = 0x01


@dataclass(frozen=True, slots=True)
class TraceParent:
    """The span that a job was submitted in. Ids are in lower-case hex."""

    trace_id: str
    span_id: str
    is_sampled: bool


def parse_trace_parent(text: str) -> TraceParent | None:
    """Return what a `traceparent` says; None for one that is malformed, which the standard has everyone ignore."""
    match = _TRACE_PARENT.match(text)
    if match is None or not int(match["trace"], 16) or not int(match["span"], 16):
        return None
    rest = text[match.end() :]
    if rest and (text.startswith("00") or not rest.startswith("-")):  # a later version may have more to say
        return None
    return TraceParent(match["trace"], match["span"], bool(int(match["flags"], 16) & _SAMPLED))


def trace_parent(claim: Claim) -> TraceParent | None:
    """Return the trace that a job belongs to, if its producer named one."""
    text = named_trace(claim.job, claim.rq_traceparent)
    return None if text is None else parse_trace_parent(text)


def named_trace(job: PromptJob, rq_traceparent: str | None) -> str | None:
    """Return the `traceparent` of a job, unchecked: its metadata counts more than RQ's meta."""
    return job.metadata.get(KEY, rq_traceparent)
