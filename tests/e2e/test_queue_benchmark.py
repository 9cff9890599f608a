"""`scripts/bench queue` on a few jobs: every system does all of them; what does not depend on time holds."""

import json

from click.testing import CliRunner

from scripts.benchmarks.queue_bench import PEER, queue


def test_it_measures_every_system() -> None:
    arguments = ["--jobs", "200", "--submit", "50", "--depth", "100", "--repeats", "1", "--json"]
    result = CliRunner().invoke(queue, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    *runs, summary = [json.loads(line) for line in result.stdout.splitlines()]
    assert [run["jobs"] for run in runs if "system" in run] == [200, 200, 200]
    assert [(run["jobs"], run["record"]) for run in runs if "record" in run] == [(50, "none"), (50, "SQLite")]
    round_trips = summary["round_trips_per_job"]
    assert round_trips.pop(PEER) > 10
    assert all(number < 1 for number in round_trips.values())
