"""Dashboard, scrape file and alarms ask for metrics that exist, by labels that they have."""

import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dunlin.telemetry.metrics import FIELDS, MEMBER
from dunlin.telemetry.metrics import documented_metrics as on_the_monitor
from services.dispatcher.doors.metrics import documented_metrics as at_the_door

FOLDER = "deploy/watching"
# What prometheus_client tells of its own process, what Prometheus adds, and its names in alarms.
PROCESS = ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds")
ADDED = {"job", "instance", "le"}
MATCHER = re.compile(r'([a-z_]\w*)\s*(?:=~|!~|!=|=)\s*"[^"]*"')
GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
NAME = re.compile(r"\b(?:dunlin_\w+|process_\w+|up)\b")
LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def yaml(path: Path) -> Any:
    # Imported by name: the package has no types of its own.
    return importlib.import_module("yaml").safe_load(path.read_text())


def labels_of() -> dict[str, set[str]]:
    """Every sample name that a scrape can hold, with its labels but those that Prometheus adds."""
    found = {name: {"name", "node"} if _of_a_process(name) else set() for name, _, _ in on_the_monitor()}
    found |= {name: {"role", "name", "node"} for name in MEMBER}
    for one in at_the_door():
        endings = ("_bucket", "_sum", "_count") if one.kind == "histogram" else ("",)
        found |= {one.name + ending: set(one.labels) for ending in endings}
    return found | {name: set() for name in (*PROCESS, "up")}


def _of_a_process(name: str) -> bool:
    return any(name.startswith(f"dunlin_{role}_") for role in FIELDS)


def panels(root: Path) -> list[dict[str, Any]]:
    board = json.loads((root / FOLDER / "grafana.json").read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def rules(root: Path) -> list[dict[str, Any]]:
    groups = yaml(root / FOLDER / "dunlin.rules.yml")["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries(root: Path) -> Iterator[tuple[str, str, str]]:
    """Where it stands, the expression, and the text that names its labels."""
    for panel in panels(root):
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    for rule in rules(root):
        yield rule["alert"], rule["expr"], ""  # its texts name labels through $labels, see below


def used(expression: str) -> set[str]:
    """The names of metrics in an expression."""
    return set(NAME.findall(re.sub(r'"[^"]*"', '""', expression)))


def wanted(expression: str) -> set[str]:
    """The labels that an expression matches or groups by."""
    groups = [word.strip() for found in GROUPING.findall(expression) for word in found.split(",")]
    return {*MATCHER.findall(expression), *groups} - {""}


def problems(expression: str, legend: str = "") -> list[str]:
    known = labels_of()
    names = used(expression)
    unknown = [f"no metric {name}" for name in sorted(names) if name not in known]
    labels = set().union(ADDED, *(known.get(name, set()) for name in names))
    asked = wanted(expression) | set(LEGEND.findall(legend))
    return [*unknown, *(f"no label {label} at {names}" for label in sorted(asked - labels))]


def test_every_query_asks_for_what_there_is(root: Path) -> None:
    found = list(queries(root))
    assert len(found) > 60
    assert all(used(expression) for _, expression, _ in found)
    assert not [(where, one) for where, text, legend in found for one in problems(text, legend)]


@pytest.mark.parametrize(
    ("expression", "legend"),
    [
        ("sum(dunlin_instance_tokens)", ""),
        ('rate(dunlin_instance_tokens_total{tenant="a"}[5m])', ""),
        ("sum by (node) (dunlin_requests_total)", ""),
        ("dunlin_kvstore_regions", "{{role}}"),
        ("rate(dunlin_time_to_first_token_seconds[5m])", ""),
    ],
)
def test_what_is_not_there_is_found(expression: str, legend: str) -> None:
    assert problems(expression, legend)


def test_alarms_name_labels_that_they_keep(root: Path) -> None:
    """`{{ $labels.x }}` in a text: an aggregation keeps only what it groups by."""
    for rule in rules(root):
        expression = rule["expr"]
        text = " ".join(rule["annotations"].values())
        named = set(re.findall(r"\$labels\.(\w+)", text))
        grouped = [set(re.split(r",\s*", found)) for found in re.findall(r"sum by \(([^)]*)\)", expression)]
        kept = (
            set.intersection(*grouped) if grouped else set().union(ADDED, *(labels_of()[n] for n in used(expression)))
        )
        assert named <= kept, rule["alert"]
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert {"summary", "description"} == set(rule["annotations"])


def test_alarms_name_flags_and_reasons_that_exist(root: Path) -> None:
    from dunlin.messages.door import RejectionCode

    text = (root / FOLDER / "dunlin.rules.yml").read_text()
    manual = (root / "docs/operating.md").read_text()
    assert all(flag in manual for flag in re.findall(r"--[a-z][a-z-]+", text))
    codes = {word for found in re.findall(r'code=~?"([^"]*)"', text) for word in found.split("|")}
    assert codes <= {one.name.lower() for one in RejectionCode} | {"internal", "quota", "forbidden"}


def test_the_dashboard_is_one_that_grafana_imports(root: Path) -> None:
    board = json.loads((root / FOLDER / "grafana.json").read_text())
    assert {"uid", "title", "schemaVersion", "templating", "panels", "time"} <= set(board)
    assert "__inputs" not in board, "the data source is a variable"
    assert "id" not in board, "a number of another Grafana's database"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    variables = {one["name"]: one for one in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for panel in panels(root):
        assert {"title", "type", "gridPos", "targets", "fieldConfig", "options"} <= set(panel)
        assert all(one["datasource"]["uid"] == "${datasource}" for one in (panel, *panel["targets"]))
        places = [target["refId"] for target in panel["targets"]]
        assert len(places) == len(set(places))
    text = json.dumps(board["panels"])
    assert {name for name in re.findall(r"\$(\w+)", text) if name != "__rate_interval"} <= set(variables)


def test_panels_lie_beside_each_other(root: Path) -> None:
    board = json.loads((root / FOLDER / "grafana.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_both_kinds_of_pages_are_scraped_at_the_ports_of_the_manual(root: Path) -> None:
    config = yaml(root / FOLDER / "prometheus.yml")
    jobs = {job["job_name"]: job["file_sd_configs"][0]["files"] for job in config["scrape_configs"]}
    ports = {"dunlin-monitor": "9100", "dunlin-dispatcher": "8000"}
    assert set(jobs) == set(ports)
    for job, files in jobs.items():
        targets = [one for name in files for group in yaml(root / FOLDER / name) for one in group["targets"]]
        assert targets
        assert {target.rpartition(":")[2] for target in targets} == {ports[job]}
    assert config["rule_files"] == ["dunlin.rules.yml"]


def test_every_alarm_is_tested_both_ways(root: Path) -> None:
    tests = yaml(root / FOLDER / "dunlin.rules.test.yml")["tests"]
    tried = {
        (re.findall(r'alertname="(\w+)"', one["expr"])[0], bool(one["exp_samples"]))
        for test in tests
        for one in test["promql_expr_test"]
    }
    assert tried == {(rule["alert"], fires) for rule in rules(root) for fires in (True, False)}


@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "dunlin.rules.yml"),
        ("test", "rules", "dunlin.rules.test.yml"),
    ],
)
def test_promtool_takes_it(root: Path, words: tuple[str, ...]) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("no promtool here")
    done = subprocess.run(
        ["promtool", *words], cwd=root / FOLDER, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
