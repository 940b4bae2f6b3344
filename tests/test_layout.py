"""The house's sizes and manners: short functions, small files, smaller cores, and nothing that leans on the workshop.

Each check is a function from a root folder to complaints; the tests below also plant a violation for each.
"""

import ast
import os
import statistics
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

CODE = ("cli", "dunlin", "services", "simulator", "examples", "benchmarks", "tests")
SHIPPED = ("cli", "dunlin", "services", "simulator")
FUNCTION_LINES = 70
MEDIAN_LINES = 10
FILE_LINES = 500
CORE_LINES = 300
CACHES = {".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", "__pycache__"}
SKIPPED = CACHES | {".git", ".venv", "build", "dist"}
# What belongs to no folder: doubles of the outside world, and whole clusters.
UNMIRRORED = {"fakes", "cluster", "conformance"}
# Spelt in two parts: this file is shipped too.
WORKSHOP = ("../" + "shared", "/work" + "/")


def sources(root: Path, folders: tuple[str, ...] = CODE) -> Iterator[tuple[Path, str]]:
    """Every Python file of ours (generated stubs are not) with its text."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root)
            if not name.is_relative_to("dunlin/v1") and not SKIPPED & set(name.parts):
                yield name, path.read_text()


@cache
def functions(source: str) -> tuple[tuple[str, int, int], ...]:
    """Name, first line and length of every function; its docstring is not counted."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            spoken = docstring.count("\n") + 1 if docstring else 0
            found.append((node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1 - spoken))
    return tuple(found)


def long_functions(root: Path) -> list[str]:
    return [
        f"{name}:{line} {function} has {length} lines, more than {FUNCTION_LINES}"
        for name, text in sources(root)
        for function, line, length in functions(text)
        if length > FUNCTION_LINES
    ]


def long_files(root: Path) -> list[str]:
    return [
        f"{name} has {text.count(chr(10))} lines, {limit} or more"
        for name, text in sources(root)
        for limit in [CORE_LINES if name.name == "core.py" else FILE_LINES]
        if text.count("\n") >= limit
    ]


def long_median(root: Path) -> list[str]:
    lengths = [length for _, text in sources(root, SHIPPED) for _, _, length in functions(text)]
    median = statistics.median(lengths) if lengths else 0
    return [f"the median function has {median:g} lines, not under {MEDIAN_LINES}"] if median >= MEDIAN_LINES else []


def global_state(root: Path) -> list[str]:
    """Module variables that functions rebind; state belongs to an object that someone owns."""
    return [
        f"{name}:{node.lineno} rebinds {', '.join(node.names)}"
        for name, text in sources(root, SHIPPED)
        if "global" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Global)
    ]


def packages_in_tests(root: Path) -> list[str]:
    """tests/ mirrors the tree by path; an `__init__.py` would make two files of one name clash."""
    return [str(path.relative_to(root)) for path in sorted((root / "tests").rglob("__init__.py"))]


def strays_in_tests(root: Path) -> list[str]:
    """Folders of tests that mirror no folder of the code (`dunlin/` is left out of their path)."""
    folders = sorted({path.parent.relative_to(root / "tests") for path in (root / "tests").rglob("test_*.py")})
    return [
        f"tests/{folder} mirrors neither dunlin/{folder} nor {folder}"
        for folder in folders
        if folder.parts and folder.parts[0] not in UNMIRRORED
        if not (root / folder).is_dir() and not (root / "dunlin" / folder).is_dir()
    ]


def named_workshop(root: Path) -> list[str]:
    """Files that name the folder the project was made in: a user does not have it (tests read DUNLIN_SHARED)."""
    return [
        f"{path.relative_to(root)} names {word}"
        for path in _files(root)
        for text in [path.read_bytes().decode(errors="replace")]
        for word in WORKSHOP
        if word in text
    ]


def _files(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in SKIPPED)
        yield from (path for path in map(Path(folder).joinpath, sorted(set(names) - SKIPPED)) if path.is_file())


CHECKS: list[Callable[[Path], list[str]]] = [
    long_functions,
    long_files,
    long_median,
    global_state,
    packages_in_tests,
    strays_in_tests,
    named_workshop,
]


@pytest.mark.parametrize("check", CHECKS)
def test_the_house_is_in_order(root: Path, check: Callable[[Path], list[str]]) -> None:
    assert check(root) == []


def test_there_is_a_house(root: Path) -> None:
    assert len(list(sources(root, SHIPPED))) > 20


def body(lines: int) -> str:
    return "def f():\n" + "    x = 1\n" * (lines - 1)


PLANTED = [
    (long_functions, "services/instance/kv/slot_table.py", body(71)),
    (long_functions, "tests/test_slots.py", "class A:\n    async def f(self):\n" + "        x = 1\n" * 70),
    (long_files, "services/instance/core.py", "x = 1\n" * 300),
    (long_files, "dunlin/effects.py", "x = 1\n" * 500),
    (long_median, "dunlin/effects.py", body(10)),
    (global_state, "dunlin/effects.py", "x = 1\ndef f():\n    global x\n    x = 2\n"),
    (packages_in_tests, "tests/wire/__init__.py", ""),
    (strays_in_tests, "tests/wires/test_codec.py", ""),
    (named_workshop, "docs/walk.md", "see " + WORKSHOP[0] + "/design\n"),
    (named_workshop, "Makefile", "X := " + WORKSHOP[1] + "main\n"),
]


@pytest.mark.parametrize(("check", "path", "text"), PLANTED)
def test_a_planted_violation_is_found(tmp_path: Path, check: Callable[[Path], list[str]], path: str, text: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
    assert len(check(tmp_path)) == 1


CLEAN = [
    ("services/instance/kv/slot_table.py", body(70)),
    ("services/instance/core.py", "x = 1\n" * 299),
    ("dunlin/effects.py", 'def f():\n    """' + "word\n" * 90 + '    """\n'),
    ("dunlin/v1/engine_pb2.py", "x = 1\n" * 900),
    ("tests/cluster/test_up.py", ""),
    ("README.md", "DUNLIN_SHARED names a folder\n"),
]


@pytest.mark.parametrize(("path", "text"), CLEAN)
@pytest.mark.parametrize("check", [check for check in CHECKS if check is not long_median])
def test_what_just_fits_passes(tmp_path: Path, check: Callable[[Path], list[str]], path: str, text: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
    assert check(tmp_path) == []
