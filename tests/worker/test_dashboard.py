"""The Grafana dashboard and the documentation name the metrics that there are: no other, and none is missing."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.worker.fakes import ScriptedRunner, make_flow
from worker.metrics.fleet_metrics import FleetMetrics
from worker.settings_model import Settings
from worker.sql.store import JobStore

DOCS = Path(__file__).resolve().parents[2] / "docs"
SERIES = re.compile(r"\b(?:pagemill|process)_[a-z0-9_]+")
PARTS = ("_bucket", "_sum", "_count")  # of a histogram
BY_THE_LIBRARY = "process_"  # of which the dashboard shows a few


@pytest.fixture
def exposed(connection: redis.Redis, sqlite_store: JobStore) -> frozenset[str]:
    """The names of all families, counters as they are written: with `_total`."""
    flow = make_flow(connection, sqlite_store, ScriptedRunner())
    fleet = FleetMetrics(Settings(data_dir=Path("unused")), sqlite_store, connection)
    text = flow._metrics.expose(None)[0].decode() + fleet.expose(None)[0].decode()
    return frozenset(f"{family.name}_total" if family.type == "counter" else family.name for family in parse_text(text))


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DOCS / "grafana-dashboard.json").read_text())
    return document


def family_of(series: str, exposed: frozenset[str]) -> str:
    """Return what a series belongs to."""
    for part in PARTS:
        if series.removesuffix(part) in exposed:
            return series.removesuffix(part)
    return series


def test_dashboard_queries_what_there_is_and_leaves_nothing_out(exposed: frozenset[str]) -> None:
    expressions = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    queried = {family_of(series, exposed) for expression in expressions for series in SERIES.findall(expression)}
    assert queried <= exposed
    assert {name for name in exposed - queried if not name.startswith(BY_THE_LIBRARY)} == set()


def test_documentation_has_each_metric(exposed: frozenset[str]) -> None:
    text = (DOCS / "metrics.md").read_text()
    table = set(re.findall(r"^\| `([a-z0-9_]+)`", text, flags=re.MULTILINE))
    assert table == {name for name in exposed if not name.startswith(BY_THE_LIBRARY)}
    mentioned = {family_of(series, exposed) for series in SERIES.findall(text)}
    assert mentioned - exposed == set()


def test_dashboard_is_well_formed() -> None:
    document = dashboard()
    panels = document["panels"]
    assert [panel["title"] for panel in panels if panel["type"] == "row"] == [
        "Throughput",
        "Latency",
        "KV cache and prefixes",
        "Queue",
        "Errors",
        "Resources",
        "Fleet (of pagemill serve)",
    ]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)  # no panel lies on another
    assert max(x for x, _ in cells) < 24
    for panel in panels:
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["description"]
            assert panel["options"]["legend"].keys() == {"calcs", "displayMode", "placement", "showLegend"}
            for target in panel["targets"]:
                assert target["expr"].count("(") == target["expr"].count(")")
    assert [variable["name"] for variable in document["templating"]["list"]] == ["datasource", "job", "instance"]
