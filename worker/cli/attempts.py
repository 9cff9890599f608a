"""The attempts at a job, as `show` prints them: how each ended, what it cost, where its time went."""

from collections.abc import Sequence

from worker.cli.tables import print_table
from worker.phases import Phase, phases_of
from worker.sql.lookups import AttemptDetail


def print_attempts(attempts: Sequence[AttemptDetail]) -> None:
    """Print the attempts, and the figures of those that have ended."""
    if not attempts:
        return
    print_table(
        "Attempts",
        ("worker", "state", "started", "ended", "error"),
        [(a.worker_name, a.state, a.started_at, a.ended_at, a.error_message) for a in attempts],
    )
    ended = [attempt for attempt in attempts if attempt.usage is not None]
    if ended:
        _print_costs(ended)
        _print_phases(ended)


def _print_costs(attempts: Sequence[AttemptDetail]) -> None:
    rows = []
    for attempt in attempts:
        usage = attempt.usage
        assert usage is not None, "an attempt that has ended"
        cost = None if attempt.cost is None else f"{attempt.cost:.3g} {attempt.currency}"
        tokens = (usage.computed_tokens, usage.recomputed_tokens)
        seconds = (usage.engine_seconds, usage.wasted_engine_seconds, usage.kv_block_seconds_share)
        rows.append((attempt.state, *seconds, *tokens, cost))
    columns = ("attempt", "engine seconds", "wasted", "KV block-seconds", "computed tokens", "recomputed", "cost")
    print_table("Cost", columns, rows)


def _print_phases(attempts: Sequence[AttemptDetail]) -> None:
    rows = []
    for attempt in attempts:
        assert attempt.usage is not None, "an attempt that has ended"
        took = {span.phase: span.took_ms for span in phases_of(attempt.usage)}
        rows.append((attempt.state, *(took.get(phase) for phase in Phase)))
    print_table("Phases in milliseconds, from the claim", ("attempt", *Phase), rows)
