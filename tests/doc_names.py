"""Which names a page of the documents puts in backticks, and which of them the tree does not have.

A page's code spans are read one by one. What looks like a path, a module, a class or a `python -m` command is looked
up in the tree (syntax trees of the packages, .proto files, the files themselves); every other span is prose.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("cli", "dunlin", "services", "simulator", "benchmarks", "tests", "examples")
ROOTS = (*PACKAGES, "docs", "proto", "deploy")
SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
MODULE = re.compile(rf"^(?:{'|'.join(PACKAGES)})(?:\.\w+)+$")
CLASS = re.compile(r"^([A-Z][a-z]\w*)(?:\.(\w+))?(?:\(.*\))?$")
COMMAND = re.compile(r"\bpython -m ((?:\w+\.)*\w+)")
RPC = re.compile(r"^\s*(?:rpc|message|enum|service)\s+(\w+)", re.MULTILINE)
FILE = re.compile(r"^[\w./*<>{},-]+$")
ENDINGS = (".py", ".md", ".proto", ".yaml", ".yml", ".json", ".toml", ".sh", ".lock", ".csv.gz")


@dataclass
class Names:
    """What the tree has: its files and folders, and every class with the names defined in it."""

    root: Path
    paths: set[str] = field(default_factory=set)
    classes: dict[str, set[str]] = field(default_factory=dict)
    bound: dict[str, set[str]] = field(default_factory=dict)
    """Of each module, by its path, the names that it binds at its top."""
    attributes: set[str] = field(default_factory=set)
    """What trace spans call their attributes; one that ends with a dot is the beginning of many."""

    @classmethod
    def read(cls, root: Path) -> "Names":
        names = cls(root)
        for top in (*PACKAGES, "docs", "proto", "deploy", "requirements"):
            names.paths |= {str(path.relative_to(root)) for path in (root / top).rglob("*")}
        names.paths |= {path.name for path in root.iterdir()}
        for package in PACKAGES:
            for path in sorted((root / package).rglob("*.py")):
                name = str(path.relative_to(root))
                if not name.startswith("tests/") or name.startswith(
                    "tests/zoo/"
                ):  # doubles in tests are nothing to tell of
                    names._add(name, ast.parse(path.read_text()))
        for path in sorted((root / "proto").rglob("*.proto")):
            names.classes |= {name: names.classes.get(name, set()) for name in RPC.findall(path.read_text())}
        return names

    def _add(self, path: str, module: ast.Module) -> None:
        bound = self.bound[path] = set()
        for node in module.body:
            bound |= {*_targets(node), *_defined(node)}
            # An alias of types (`Answer = Accepted | Refused`) is a name as a class is.
            self.classes |= {target: self.classes.get(target, set()) for target in _targets(node)}
        for part in ast.walk(module):
            if isinstance(part, ast.ClassDef):
                self.classes.setdefault(part.name, set()).update(_members(part))
            elif isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "Parties":
                self.classes.setdefault(ast.literal_eval(part.args[0]), set())  # a conversation
            elif isinstance(part, ast.Constant) and path.startswith("dunlin/telemetry/"):
                self.attributes |= {str(part.value)} if str(part.value).startswith("dunlin.") else set()

    def has_file(self, text: str) -> bool:
        """Whether a file or folder of this path exists, from the root or below a folder; `*` and `<name>` fit any."""
        pattern = re.escape(text.strip("/")).replace(r"\*", "[^/]*")
        pattern = re.sub(r"<[^>]*>", "[^/]*", pattern)
        return any(re.search(rf"(^|/){pattern}$", path) for path in self.paths)

    def has_module(self, dotted: str) -> bool:
        """Whether `dotted` is a module or a package, or a name that a module of the tree binds."""
        parent, _, name = dotted.rpartition(".")
        return self._is_module(dotted) or any(name in self.bound.get(path, ()) for path in _files_of(parent))

    def _is_module(self, dotted: str) -> bool:
        return any(path in self.paths for path in (dotted.replace(".", "/"), *_files_of(dotted)))

    def has_attribute(self, name: str) -> bool:
        """Whether trace spans have an attribute of this name."""
        return any(name == each or (each.endswith(".") and name.startswith(each)) for each in self.attributes)

    def has_class(self, name: str, member: str) -> bool:
        return name in self.classes and (not member or not self.classes[name] or member in self.classes[name])


def _files_of(dotted: str) -> tuple[str, str]:
    path = dotted.replace(".", "/")
    return f"{path}.py", f"{path}/__init__.py"


def _defined(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in node.names)
    elif isinstance(node, ast.Assign) and [*_targets(node)] == ["__all__"] and isinstance(node.value, ast.List):
        yield from (str(item.value) for item in node.value.elts if isinstance(item, ast.Constant))


def _targets(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Assign):
        yield from (target.id for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id


def _members(node: ast.ClassDef) -> set[str]:
    names = {target for child in node.body for target in _targets(child)}
    names |= {child.name for child in node.body if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)}
    return names | {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)}


def spans(text: str) -> Iterator[str]:
    """Every code span outside of fenced blocks."""
    yield from SPAN.findall(FENCE.sub("", text))


def missing(text: str, names: Names, foreign: frozenset[str] = frozenset(), only_paths: bool = False) -> list[str]:
    """The spans of a page that name what the tree lacks.

    `foreign` are names of other projects. `only_paths`: modules and paths from the root alone, so that a page may
    tell of the past.
    """
    found = [span for span in spans(text) if span not in foreign and not _is_there(span, names, only_paths)]
    commands = [command for command in COMMAND.findall(text) if not _starts(command, names)]
    return found + [f"python -m {command}" for command in commands]


def _starts(module: str, names: Names) -> bool:
    return module.split(".")[0] not in PACKAGES or names.has_module(module)


def _is_there(span: str, names: Names, only_paths: bool) -> bool:
    if MODULE.match(span):
        return names.has_module(span) or names.has_file(span) or names.has_attribute(span)
    if _is_file(span) and not (only_paths and span.split("/")[0] not in ROOTS):
        return names.has_file(span)
    named = CLASS.match(span)
    return only_paths or not named or names.has_class(named[1], named[2] or "")


def _is_file(span: str) -> bool:
    if not FILE.match(span) or span.startswith(("/", ".", "-")):
        return False
    return span.endswith(ENDINGS) or ("/" in span and span.split("/")[0] in ROOTS)
