"""The import rule, read from the syntax tree: who may know whom (docs/architecture.md, "Who imports whom").

Every rule is a function from a `Tree` (any folder that is laid out like this repository) to a list of complaints, so
that tests/test_imports.py can plant a violation in a small tree and see it found. It knows no test.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

PACKAGES = ("cli", "dunlin", "services", "simulator")
SERVICES = ("dispatcher", "instance", "kvstore", "monitor", "global_manager")
PROTOBUF = ("grpc", "grpc_health", "grpc_reflection", "grpc_tools", "google.protobuf", "dunlin.v1")
WEB = ("aiohttp", "fastapi", "flask", "quart", "starlette", "tornado", "uvicorn", "django", "http.server")
OBJECTS = ("pickle", "marshal", "shelve", "dill", "cloudpickle")
"""What reads them may run what it reads (docs/architecture.md)."""
# What a core may use of the standard library: nothing with a clock, a thread, a file, a socket or hidden state.
STDLIB_PURE = (
    "__future__", "abc", "array", "bisect", "collections", "contextlib", "copy", "dataclasses", "decimal", "enum",
    "fractions", "functools", "hashlib", "heapq", "itertools", "json", "keyword", "math", "operator", "re", "reprlib",
    "string", "struct", "textwrap", "types", "typing", "unicodedata", "warnings", "weakref", "zlib",
)  # fmt: skip
PROMISED = (
    "dunlin/messages/**", "dunlin/effects.py", "dunlin/policies/**", "dunlin/cost/models.py", "dunlin/cost/links.py",
    "dunlin/cost/processes.py", "dunlin/cost/step_fit.py", "dunlin/kv/prefix_hash.py", "dunlin/limits.py",
    "dunlin/cores/**", "dunlin/config/fields.py", "dunlin/config/common.py", "dunlin/config/adapters.py",
)  # fmt: skip
PURE_PARTS = (
    "services/dispatcher/batches/line_window.py",
    "services/dispatcher/batches/results_check.py",
)
"""Parts that no core loads and that are pure all the same."""
NAMED_TUPLE = ("_replace", "_asdict", "_fields", "_make")
"""Public in spite of the underscore."""
REFLECTIVE = ("getattr", "setattr", "hasattr", "delattr")
DECISIONS = ("Place", "Step", "GroupOrder", "Transfer")
"""Messages by which cores decide who runs what, where and when."""
IMPURE_CALLS = ("open", "print", "input", "eval", "exec", "compile", "__import__", "breakpoint")


@dataclass(frozen=True)
class Import:
    """One import statement's target: `name` is absolute, `eager` if importing the module executes it."""

    name: str
    line: int
    eager: bool


class Tree:
    """The modules under the three packages of `root` and what each imports."""

    def __init__(self, root: Path) -> None:
        self.paths = {
            _module_name(path.relative_to(root)): path.relative_to(root)
            for package in PACKAGES
            for path in sorted((root / package).rglob("*.py"))
            if not str(path.relative_to(root)).startswith("dunlin/v1/")
        }
        self.syntax = {name: ast.parse((root / path).read_text(), str(path)) for name, path in self.paths.items()}
        self.imports = {name: list(self._read(name)) for name in self.paths}

    def _read(self, module: str) -> Iterator[Import]:
        is_package = self.paths[module].name == "__init__.py"
        for node, eager in _statements(self.syntax[module], eager=True):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(alias.name, node.lineno, eager)
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(node, module, is_package)
                for alias in node.names:
                    # `from a import b` loads a.b where that is a module, else a alone.
                    whole = f"{base}.{alias.name}"
                    known = whole in self.paths or whole in _dotted((*PROTOBUF, *WEB))
                    yield Import(whole if known else base, node.lineno, eager)

    def where(self, module: str, line: int) -> str:
        return f"{self.paths[module]}:{line}"

    def matching(self, *patterns: str) -> list[str]:
        """The modules whose path fits a pattern: `*` stays within a folder, `/**` at the end is all below it."""
        return [name for name, path in self.paths.items() if any(_fits(path, pattern) for pattern in patterns)]


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _dotted(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if "." in name)


def _fits(path: Path, pattern: str) -> bool:
    if pattern.endswith("/**"):
        return path.is_relative_to(pattern.removesuffix("/**"))
    parts = pattern.split("/")
    return len(parts) == len(path.parts) and all(map(fnmatchcase, path.parts, parts))


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if node.level == 0:
        return node.module or ""
    parts = module.split(".")
    drop = node.level - 1 if is_package else node.level
    return ".".join([*parts[: len(parts) - drop], *([node.module] if node.module else [])])


def _statements(node: ast.AST, eager: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below `node`; not eager inside a function or under `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        deferred = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_type_checking(child)
        yield child, eager
        yield from _statements(child, eager and not deferred)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _under(name: str, *prefixes: str) -> bool:
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def _first_party(name: str) -> bool:
    return _under(name, *PACKAGES)


# --- the rules -------------------------------------------------------------------------------------------------------


def only_in(tree: Tree, libraries: tuple[str, ...], patterns: tuple[str, ...]) -> list[str]:
    """Complaints about modules outside `patterns` that import one of `libraries`, eagerly or not."""
    allowed = set(tree.matching(*patterns))
    return [
        f"{tree.where(module, found.line)} imports {found.name}; only {', '.join(patterns)} may"
        for module, imports in tree.imports.items()
        if module not in allowed
        for found in imports
        if _under(found.name, *libraries)
    ]


def knows_only(tree: Tree, patterns: tuple[str, ...], known: tuple[str, ...], but: tuple[str, ...] = ()) -> list[str]:
    """Complaints about first-party imports of modules that fit `patterns` and lie outside `known` (packages' own
    `__init__` aside: the name `dunlin` alone is the version and nothing else)."""
    return [
        f"{tree.where(module, found.line)} imports {found.name}; it may know only {', '.join(known)}"
        for module in tree.matching(*patterns)
        for found in tree.imports[module]
        if _first_party(found.name) and found.name not in PACKAGES
        if not _under(found.name, *known) or _under(found.name, *but)
    ]


def protobuf_stays_at_the_edge(tree: Tree) -> list[str]:
    doors = "services/dispatcher/doors/grpc*.py"
    return only_in(tree, PROTOBUF, ("dunlin/wire/**", "dunlin/membership/**", "services/*/server*.py", doors))


def web_stays_at_the_door(tree: Tree) -> list[str]:
    """Servers of HTTP, and the load generator's client of it."""
    places = (
        "services/dispatcher/doors/http/**",
        "services/monitor/server_metrics.py",
        "dunlin/workload/loadgen/http_client.py",
    )
    return only_in(tree, WEB, places)


def torch_stays_below(tree: Tree) -> list[str]:
    """Tensors live in engine and transport; their packages' `__init__` load none."""
    libraries = ("torch", "safetensors.torch", "triton", "flashinfer", "nixl", "nixl_cu12", "nixl_cu13")
    return only_in(tree, libraries, ("dunlin/engine/**", "dunlin/transport/**")) + [
        f"importing {package} loads {found}"
        for package in ("dunlin.engine", "dunlin.transport")
        if package in tree.paths
        for found in sorted(loaded(tree, package))
        if _under(found, *libraries)
    ]


def sqlite_stays_in_the_store(tree: Tree) -> list[str]:
    return only_in(tree, ("sqlite3",), ("dunlin/cost/store.py", "dunlin/telemetry/**"))


def grammars_stay_in_their_package(tree: Tree) -> list[str]:
    return only_in(tree, ("llguidance",), ("dunlin/structured_output/**",))


def objects_stay_in_their_process(tree: Tree) -> list[str]:
    return only_in(tree, OBJECTS, ())


def vocabulary_knows_itself(tree: Tree) -> list[str]:
    return knows_only(tree, ("dunlin/messages/**", "dunlin/effects.py"), ("dunlin.messages", "dunlin.effects"))


def policies_know_no_core(tree: Tree) -> list[str]:
    known = ("dunlin.messages", "dunlin.effects", "dunlin.policies", "dunlin.cost.models")
    return knows_only(tree, ("dunlin/policies/**", "dunlin/cost/models.py"), known)


def client_knows_the_wire_alone(tree: Tree) -> list[str]:
    known = ("dunlin.client", "dunlin.messages", "dunlin.effects", "dunlin.wire")
    return knows_only(tree, ("dunlin/client/**",), known)


def floors_import_downwards(tree: Tree) -> list[str]:
    """The library lies below the services and the simulator, and all of them below the command line."""
    return [
        f"{tree.where(module, found.line)} imports {found.name}; {floor} lies below it"
        for floor, above in (
            ("dunlin", ("cli", "services", "simulator")),
            ("services", ("cli",)),
            ("simulator", ("cli",)),
        )
        for module in tree.matching(f"{floor}/**")
        for found in tree.imports[module]
        if _under(found.name, *above)
    ]


def model_knows_no_engine(tree: Tree) -> list[str]:
    """What dispatchers and engines share of a model is read without an engine."""
    return knows_only(tree, ("dunlin/model/**",), ("dunlin",), but=("dunlin.engine",))


def services_meet_on_the_wire(tree: Tree) -> list[str]:
    """No service imports another, and none imports the simulator."""
    complaints = []
    for name in SERVICES:
        others = tuple(f"services.{other}" for other in SERVICES if other != name)
        complaints += [
            f"{tree.where(module, found.line)} imports {found.name}; services meet on the wire only"
            for module in tree.matching(f"services/{name}/**")
            for found in tree.imports[module]
            if _under(found.name, *others, "simulator")
        ]
    return complaints


def simulator_runs_cores(tree: Tree) -> list[str]:
    """The simulator knows cores and pure parts, never a server, a live host or a wire."""
    live = ("dunlin.runtime.core_host", "dunlin.wire", "dunlin.membership", "dunlin.client")
    return [
        f"{tree.where(module, found.line)} imports {found.name}; the simulator runs cores, never servers"
        for module in tree.matching("simulator/**")
        for found in tree.imports[module]
        if _is_server(found.name) or _under(found.name, *live)
    ]


SIMULATOR_FOLDERS = {
    "links": (),
    "engine": ("links",),
    "cluster": ("links", "engine"),
    "study": ("links", "engine", "cluster"),
    "campaign": ("links", "engine", "cluster"),
}
"""The folders of the simulator, and which others each may import."""


def simulator_folders_point_down(tree: Tree) -> list[str]:
    """Models of engines know no cluster, clusters know neither campaigns nor studies, and these not each other."""
    return [
        f"{tree.where(module, found.line)} imports {found.name}, which is not below simulator/{folder}"
        for folder, below in SIMULATOR_FOLDERS.items()
        for module in tree.matching(f"simulator/{folder}/**")
        for found in tree.imports[module]
        if _under(found.name, "simulator") and not _under(found.name, *(f"simulator.{one}" for one in (folder, *below)))
    ]


def simulator_reads_no_private_state(tree: Tree) -> list[str]:
    """The simulator touches what cores and models show, never an underscored attribute of anything but `self`."""
    return [
        f"{tree.where(module, line)} reads {text}: that is private; show it, or do without"
        for module in tree.matching("simulator/**")
        for line, text in _private_reads(tree.syntax[module])
    ]


def _private_reads(syntax: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(syntax):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in REFLECTIVE:
            for argument in node.args[1:2]:
                if isinstance(argument, ast.Constant) and _is_private(str(argument.value)):
                    yield node.lineno, ast.unparse(node)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def simulator_schedules_nothing(tree: Tree) -> list[str]:
    """What a scheduler is made of comes from the cores: no module here calls a policy or builds a step or a placement.

    Presets may be read, since a cluster is configured by one.
    """
    return [
        f"{tree.where(module, found.line)} imports {found.name}; the simulator decides nothing"
        for module in tree.matching("simulator/**")
        for found in tree.imports[module]
        if _under(found.name, "dunlin.policies") and not _under(found.name, "dunlin.policies.presets")
    ] + [
        f"{tree.where(module, node.lineno)} makes a {node.func.id}: that is a core's to decide"
        for module in tree.matching("simulator/**")
        for node in ast.walk(tree.syntax[module])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in DECISIONS
    ]


def _is_server(name: str) -> bool:
    """Modules of a service that do I/O: its servers, its entry point and the public doors."""
    parts = name.split(".")
    return parts[0] == "services" and len(parts) > 2 and parts[2].startswith(("server", "doors", "__main__"))


def loaded(tree: Tree, module: str, lazily: bool = False) -> dict[str, str]:
    """All that importing `module` loads, each with the place that asked for it.

    `lazily` follows imports inside functions too, except those of the packages on the way (`dunlin/__init__.py` looks
    the client up on first use, and a core that imports dunlin.messages does not).
    """
    reached: dict[str, str] = {}
    waiting = [(module, True, "")]
    while waiting:
        name, asked_for, place = waiting.pop(0)
        if name in reached:
            continue
        reached[name] = place
        parent = name.rpartition(".")[0]
        if parent and _first_party(name):
            waiting.append((parent, False, place))
        for found in tree.imports.get(name, []):
            if found.eager or (lazily and asked_for):
                waiting.append((found.name, True, tree.where(name, found.line)))
    return reached


def pure_roots(tree: Tree) -> list[str]:
    """Where purity begins: the cores, and the parts of the library that are promised to them."""
    return tree.matching("services/*/core.py", *PURE_PARTS, *PROMISED)


def _allowed_in_a_core(name: str, service: str | None) -> bool:
    if name in ("dunlin", "dunlin.config", "dunlin.cost", "dunlin.kv", "services"):
        return True
    if service and _under(name, service):
        return not _is_server(name)
    if _first_party(name):
        return _under(name, *(path.removesuffix("/**").removesuffix(".py").replace("/", ".") for path in PROMISED))
    return name.split(".")[0] in STDLIB_PURE


def cores_are_pure(tree: Tree) -> list[str]:
    """Complaints about what a core, or anything it loads directly or not, imports or calls."""
    complaints: dict[str, None] = {}
    for start in pure_roots(tree):
        service = ".".join(start.split(".")[:2]) if start.startswith("services.") else None
        for name, place in loaded(tree, start, lazily=True).items():
            if not _allowed_in_a_core(name, service):
                complaints[f"{place} imports {name}, which {start} must not load"] = None
            elif name in tree.paths:
                complaints |= dict.fromkeys(_impure_calls(tree, name))
    return list(complaints)


def _impure_calls(tree: Tree, module: str) -> list[str]:
    return [
        f"{tree.where(module, node.lineno)} calls {node.func.id}() in a core or a part of one"
        for node in ast.walk(tree.syntax[module])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
    ] + [
        f"{tree.where(module, node.lineno)} awaits in a core or a part of one"
        for node in ast.walk(tree.syntax[module])
        if isinstance(node, ast.Await | ast.AsyncFunctionDef | ast.AsyncFor | ast.AsyncWith)
    ]


RULES: list[Callable[[Tree], list[str]]] = [
    protobuf_stays_at_the_edge,
    web_stays_at_the_door,
    torch_stays_below,
    sqlite_stays_in_the_store,
    grammars_stay_in_their_package,
    objects_stay_in_their_process,
    vocabulary_knows_itself,
    policies_know_no_core,
    client_knows_the_wire_alone,
    floors_import_downwards,
    model_knows_no_engine,
    services_meet_on_the_wire,
    simulator_runs_cores,
    simulator_folders_point_down,
    simulator_reads_no_private_state,
    simulator_schedules_nothing,
    cores_are_pure,
]
