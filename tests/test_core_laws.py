"""Cores are deterministic: what can be seen of that in the syntax tree of the cores and everything they load.

Sets have no order that two runs share, `id` and `hash` differ between processes, and the builtin `sum` of floats gives
other last bits on Python 3.12 than on 3.11 (`math.fsum`, or a loop, does not).
"""

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.import_rule import Tree, loaded, pure_roots

IGNORES_ORDER = ("sorted", "any", "all", "len", "min", "max", "set", "frozenset", "sum")
FLOAT_UNITS = ("_s", "_ms", "_share", "_ratio")
Law = Callable[[ast.Module], Iterator[tuple[int, str]]]


def walks_a_set(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Loops over a set, and lists made of one, unless something that ignores order takes the elements."""
    known = _set_names(module)
    harmless = {
        id(argument) for node in ast.walk(module) for argument in _arguments(node) if _called(node) in IGNORES_ORDER
    }
    for node in ast.walk(module):
        if id(node) not in harmless:
            for walked in _walked(node):
                if _is_set(walked, known):
                    yield walked.lineno, f"walks the set {ast.unparse(walked)}"


def _called(node: ast.AST) -> str:
    """The plain name that a call calls; empty for anything else."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _arguments(node: ast.AST) -> list[ast.expr]:
    return node.args if isinstance(node, ast.Call) else []


def _walked(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.For):
        return [node.iter]
    if isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
        return [part.iter for part in node.generators]
    if _called(node) in ("list", "tuple", "iter", "enumerate"):
        return _arguments(node)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "pop"
        and not node.args
    ):
        return [node.func.value]
    return []


def _is_set(node: ast.expr, known: set[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    return _called(node) in ("set", "frozenset") or ast.unparse(node) in known


def _set_names(module: ast.Module) -> set[str]:
    """Names and attributes that the module itself says are sets, by annotation or by what it assigns."""
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.AnnAssign) and _says_set(node.annotation):
            names.add(ast.unparse(node.target))
            names.add(f"self.{ast.unparse(node.target)}")
        elif isinstance(node, ast.Assign) and _is_set(node.value, set()):
            names |= {ast.unparse(target) for target in node.targets}
        elif isinstance(node, ast.arg) and node.annotation and _says_set(node.annotation):
            names.add(node.arg)
    return names


def _says_set(annotation: ast.expr) -> bool:
    return ast.unparse(annotation).split("[")[0] in ("set", "frozenset", "Set", "AbstractSet", "MutableSet")


def sums_floats(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Builtin sums of what looks like floats: a float literal, a division, a name with a unit of seconds or shares."""
    for node in ast.walk(module):
        parts = [part for argument in _arguments(node) for part in ast.walk(argument)]
        if _called(node) == "sum" and any(map(_looks_float, parts)):
            assert isinstance(node, ast.Call)
            yield node.lineno, f"sums floats: {ast.unparse(node)}"


def _looks_float(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, float)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div)
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return name.endswith(FLOAT_UNITS)


def asks_for_identity(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _called(node) in ("id", "hash"):
            yield node.lineno, f"calls {_called(node)}(), which differs between processes"


LAWS: list[Law] = [walks_a_set, sums_floats, asks_for_identity]


def complaints(tree: Tree, law: Law) -> list[str]:
    """What the law finds in the cores and in all of ours that they load."""
    reached = {name: None for start in pure_roots(tree) for name in loaded(tree, start, lazily=True)}
    return [
        f"{tree.where(name, line)} {what}"
        for name in reached
        if name in tree.paths
        for line, what in law(tree.syntax[name])
    ]


@pytest.fixture(scope="module")
def tree(root: Path) -> Tree:
    return Tree(root)


@pytest.mark.parametrize("law", LAWS)
def test_the_law_holds(tree: Tree, law: Law) -> None:
    assert complaints(tree, law) == []


@pytest.mark.parametrize(
    ("law", "source"),
    [
        (walks_a_set, "for x in {1, 2}:\n    pass\n"),
        (
            walks_a_set,
            "class A:\n    def f(self):\n        self.open: set[int] = set()\n        return [x for x in self.open]\n",
        ),
        (walks_a_set, "names = set()\nfirst = list(names)\n"),
        (walks_a_set, "def f(names: frozenset[int]):\n    return next(iter(names))\n"),
        (walks_a_set, "names = {1}\nnames.pop()\n"),
        (walks_a_set, "x = tuple(a for a in set('ab'))\n"),
        (sums_floats, "x = sum(row.wait_s for row in rows)\n"),
        (sums_floats, "x = sum([0.5, 1.5])\n"),
        (sums_floats, "x = sum(a / b for a, b in c)\n"),
        (asks_for_identity, "x = hash('a')\n"),
    ],
)
def test_a_breach_is_found_in_what_a_core_loads(tmp_path: Path, law: Law, source: str) -> None:
    for name in ("services/instance/core.py", "services/instance/kv/slot_table.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(
            source if name.endswith("slot_table.py") else "from services.instance.kv import slot_table\n"
        )
    assert [line for line in complaints(Tree(tmp_path), law) if line.startswith("services/instance/kv/slot_table.py:")]


@pytest.mark.parametrize(
    "source",
    [
        "for x in sorted({2, 1}):\n    pass\n",
        "names = set()\nfound = any(x > 1 for x in names)\n",
        "names = set()\nmore = {x + 1 for x in names}\nrows = [1]\nrows.pop()\nlist(rows)\n",
        "x = sum(row.tokens for row in rows)\n",
        "seen: dict[int, int] = {}\nfor x in seen:\n    pass\n",
    ],
)
def test_what_keeps_the_law_passes(source: str) -> None:
    assert [found for law in LAWS for found in law(ast.parse(source))] == []
