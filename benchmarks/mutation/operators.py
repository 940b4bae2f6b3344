"""The small changes that one node of a syntax tree can have. Knows no file and no test.

Left alone is what no test should notice or none can: docstrings, annotations, `raise` texts, `repr`s, imports,
assertions, and the members of enumerations and protocols.
"""

import ast
import copy
from collections.abc import Callable, Iterator

Change = tuple[ast.AST, str]
"""The node to be replaced, and the text that takes its place."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift,
}  # fmt: skip
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_FIXED_BASES = ("Enum", "Protocol")


def changes(tree: ast.Module) -> Iterator[Change]:
    """Every change of every node, one at a time."""
    yield from _visit(tree)


def _visit(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert) or _is_fixed(node):
        return
    if isinstance(node, ast.Raise):
        yield node, "pass"
        return
    for kind, change in _CHANGES:
        if isinstance(node, kind):
            yield from change(node)
    for child in _children(node):
        yield from _visit(child)


def _is_fixed(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name == "__repr__"
    if isinstance(node, ast.ClassDef):
        return any(word in ast.unparse(base) for base in node.bases for word in _FIXED_BASES)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts in which changes are looked for: neither annotations nor decorators nor default values."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield from node.body
    elif isinstance(node, ast.AnnAssign):
        yield from [node.value] if node.value is not None else []
    elif isinstance(node, ast.Call):
        yield from [node.func, *node.args, *(each.value for each in node.keywords if each.arg != "strict")]
    else:
        yield from ast.iter_child_nodes(node)


def _compare(node: ast.Compare) -> Iterator[Change]:
    for index, operator in enumerate(node.ops):
        other = copy.deepcopy(node)
        other.ops[index] = _COMPARISONS[type(operator)]()
        yield node, _text(other)


def _bool_operation(node: ast.BoolOp) -> Iterator[Change]:
    other = copy.deepcopy(node)
    other.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    yield node, _text(other)


def _unary(node: ast.UnaryOp) -> Iterator[Change]:
    if isinstance(node.op, ast.Not | ast.USub):
        yield node, _text(node.operand)


def _binary(node: ast.BinOp) -> Iterator[Change]:
    if type(node.op) in _ARITHMETIC and not isinstance(node.left, ast.JoinedStr):
        other = copy.deepcopy(node)
        other.op = _ARITHMETIC[type(node.op)]()
        yield node, _text(other)


def _constant(node: ast.Constant) -> Iterator[Change]:
    if isinstance(node.value, bool):
        yield node, str(not node.value)
    elif isinstance(node.value, int):
        yield node, f"({node.value}+1)"


def _call(node: ast.Call) -> Iterator[Change]:
    if isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
        yield node.func, _FUNCTIONS[node.func.id]


def _statement(node: ast.Expr | ast.Delete) -> Iterator[Change]:
    yield node, "pass"


def _assign(node: ast.Assign | ast.AugAssign) -> Iterator[Change]:
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    if isinstance(node, ast.AugAssign) or isinstance(target, ast.Attribute | ast.Subscript):
        yield node, "pass"
    if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
        other = copy.deepcopy(node)
        other.op = _ARITHMETIC[type(node.op)]()
        yield node, ast.unparse(other)


def _choice(node: ast.IfExp) -> Iterator[Change]:
    other = copy.deepcopy(node)
    other.test = ast.UnaryOp(ast.Not(), node.test)
    yield node, _text(other)


def _branch(node: ast.If | ast.While) -> Iterator[Change]:
    if isinstance(node, ast.If):
        yield node.test, "True"
    yield node.test, "False"


def _jump(node: ast.Continue | ast.Break) -> Iterator[Change]:
    yield node, "break" if isinstance(node, ast.Continue) else "continue"


def _return(node: ast.Return) -> Iterator[Change]:
    if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield node, "return None"


def _filter(node: ast.comprehension) -> Iterator[Change]:
    for condition in node.ifs:
        yield condition, "True"


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


_CHANGES: list[tuple[type[ast.AST] | tuple[type[ast.AST], ...], Callable[..., Iterator[Change]]]] = [
    (ast.Compare, _compare),
    (ast.BoolOp, _bool_operation),
    (ast.UnaryOp, _unary),
    (ast.BinOp, _binary),
    (ast.Constant, _constant),
    (ast.Call, _call),
    ((ast.Expr, ast.Delete), _statement),
    ((ast.Assign, ast.AugAssign), _assign),
    (ast.IfExp, _choice),
    ((ast.If, ast.While), _branch),
    ((ast.Continue, ast.Break), _jump),
    (ast.Return, _return),
    (ast.comprehension, _filter),
]
