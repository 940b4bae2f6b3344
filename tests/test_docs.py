"""The documents lead where they say; every command in them runs, and every name in backticks is one of the tree."""

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import make_parser
from tests.doc_names import Names, missing, spans
from tests.import_rule import Tree

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = re.compile(r"^(?:dunlin .*)$", re.MULTILINE)
FENCED = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HISTORY = ("decisions", "measurements")
"""Their pages keep the names of their day, but not paths and commands that are gone."""
FOREIGN = frozenset(
    {"Authorization", "Origin", "NaN", "Infinity", "EngineCore", "Req", "config.json", "tokenizer.json"}
    | {
        "adapter_config.json",
        "DunlinSlowFirstTokens",
        "DunlinRequestsFail",
        "DunlinRefusesForLoad",
        "<data-dir>/dunlin.json",
        "<data-dir>/settings.toml",
    }
    | {"vllm/benchmarks/lib/endpoint_request_func.py", "dunlin.tokens", "dunlin.cli.main"}
)
"""HTTP headers, numbers, names of other projects, files that are not of this tree, alarms (deploy/watching), and what
the changelog says is gone."""


def anchor(heading: str) -> str:
    """What a heading is called in links."""
    return re.sub(r"[^\w\- ]", "", heading.lstrip("#").lower()).strip().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {anchor(line) for line in page.read_text().splitlines() if line.startswith("#")}


def commands() -> Iterator[str]:
    for page in PAGES:
        for block in FENCED.findall(page.read_text()):
            yield from COMMANDS.findall(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(page.read_text()):
        if "://" in link:
            continue
        path, _, name = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not name or name in anchors(target), link


def test_every_decision_is_listed() -> None:
    listed = set(LINK.findall((ROOT / "docs/decisions/README.md").read_text()))
    there = {page.name for page in (ROOT / "docs/decisions").glob("*.md")} - {"README.md"}
    assert listed == there


def test_there_are_commands() -> None:
    assert len(list(commands())) > 20


@pytest.mark.parametrize("line", sorted(set(commands())))
def test_the_command_line_takes_it(line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    if words[0] == "serve":
        module = importlib.import_module(f"services.{words[1]}.__main__")
        module.parser().parse_args(words[2:])
    else:
        make_parser().parse_args(words)


@pytest.fixture(scope="module")
def names() -> Names:
    return Names.read(ROOT)


@pytest.fixture(scope="module")
def tree() -> Tree:
    return Tree(ROOT)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_tree_has_what_is_named(page: Path, names: Names) -> None:
    only_paths = (page.parent.name in HISTORY and page.name != "README.md") or page.name == "CHANGELOG.md"
    assert missing(page.read_text(), names, FOREIGN, only_paths) == []


def test_names_are_found_in_pages() -> None:
    text = "`one` and\n```\n`not this`\n```\nthen ``two`` and `Three.four`."
    assert list(spans(text)) == ["one", "Three.four"]


@pytest.mark.parametrize(
    "span",
    [
        "dunlin/nothing.py",
        "no_such_file.py",
        "services/*/no_such_file.py",
        "dunlin.effects.nothing.at_all",
        "NoSuchClass",
        "DispatcherCore.no_such_method",
    ],
)
def test_a_name_that_is_gone_is_noticed(span: str, names: Names) -> None:
    assert missing(f"See `{span}`.", names) == [span]
    assert missing(f"See `{span}`.", names, frozenset({span})) == []


def test_a_module_that_is_gone_is_noticed(names: Names) -> None:
    assert missing("    python -m benchmarks.nothing.here --seeds 3", names) == ["python -m benchmarks.nothing.here"]


@pytest.mark.parametrize(
    "span",
    [
        "services/<name>/core.py",
        "services/*/server*.py",
        "dunlin.effects",
        "DispatcherCore.receive",
        "Place",
        "Exchange",
    ],
)
def test_a_name_that_is_there_is_found(span: str, names: Names) -> None:
    assert missing(f"See `{span}`.", names) == []


ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()


@pytest.mark.parametrize("service", ["dispatcher", "instance", "kvstore"])
def test_the_architecture_names_every_folder_of_a_core(service: str) -> None:
    folders = {path.parent.name for path in (ROOT / "services" / service).glob("*/__init__.py")}
    assert folders == set(re.findall(rf"`services/{service}/(\w+)`", ARCHITECTURE))


@pytest.mark.parametrize("service", ["dispatcher", "instance"])
def test_a_folder_imports_only_those_above_it(service: str, tree: Tree) -> None:
    order = re.findall(rf"^\| `services/{service}/(\w+)`", ARCHITECTURE, re.MULTILINE)
    imported = {
        (folder, found.name.split(".")[2])
        for folder in order
        for module in tree.matching(f"services/{service}/{folder}/**")
        for found in tree.imports[module]
        if found.name.startswith(f"services.{service}.")
    }
    assert imported
    assert [(one, other) for one, other in imported if other in order and order.index(other) > order.index(one)] == []


@pytest.mark.parametrize("name", ["Dispatch", "Group", "Pool", "Exchange", "Placement", "Plan", "Fleet", "Engine"])
def test_the_table_of_streams_has_every_message(name: str) -> None:
    (row,) = re.findall(rf"^\|.*\| \[`{name}`\].*\|(.*)\|(.*)\|$", ARCHITECTURE, re.MULTILINE)
    listed = {word for cell in row for word in re.findall(r"[A-Z]\w+", cell.partition(";")[0])}
    proto = (ROOT / f"proto/dunlin/v1/{name.lower()}.proto").read_text()
    sent = {
        kind
        for body in re.findall(r"oneof body \{(.*?)\}", proto, re.DOTALL)
        for kind in re.findall(r"(\w+) \w+ =", body)
    }
    assert listed == sent
