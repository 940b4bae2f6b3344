"""The documents lead where they say, and every command in them is one that the command line takes."""

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import make_parser

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = re.compile(r"^(?:dunlin .*)$", re.MULTILINE)
FENCED = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


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
