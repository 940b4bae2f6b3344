"""The wheel, installed bare in a fresh environment: the SDK works there, and nothing heavier came along."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ALONE = """
import json, sys
import dunlin
light = sorted(sys.modules)
dunlin.Client, dunlin.AsyncClient
print(json.dumps({"version": dunlin.__version__, "file": dunlin.__file__, "light": light, "all": sorted(sys.modules)}))
"""
HEAVY = ("torch", "numpy", "cli", "services", "simulator", "aiohttp", "transformers")


def heavy(modules: list[str]) -> list[str]:
    """Which of the loaded `modules` an import of the SDK must not load."""
    return [name for name in modules if name.split(".")[0] in HEAVY]


def outside() -> dict[str, str]:
    """The environment without what makes the checkout importable."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in ours}


def pip(python: Path | str, *arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=outside())


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy without stubs, as from a fresh clone."""
    copy, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("dist")
    for name in ("cli", "dunlin", "services", "simulator", "proto", "tests"):
        if (root / name).exists():
            shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*_pb2.py*"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"):
        shutil.copy(root / name, copy / name)
    built = pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(copy))
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = out.glob("dunlin-*.whl")
    return path


def test_the_wheel_holds_the_packages_and_nothing_else(root: Path, wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    info = next(name.split("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
    assert {name.split("/")[0] for name in names} <= {"cli", "dunlin", "services", "simulator", info}
    assert {"dunlin/py.typed", "dunlin/__init__.py", "services/instance/__init__.py"} <= set(names)
    assert "dunlin/engine/attention/native/paged_attention.cpp" in names
    protos = list(root.glob("proto/dunlin/v1/*.proto"))
    stubs = {f"dunlin/v1/{proto.stem}_pb2.py{suffix}" for proto in protos for suffix in ("", "i")}
    assert stubs
    assert stubs <= set(names)
    ours = {
        str(path.relative_to(root))
        for top in ("dunlin", "services", "simulator")
        for path in (root / top).rglob("*.py")
    }
    assert ours <= set(names) | {name for name in ours if name.startswith("dunlin/v1/")}
    assert f"{info}/licenses/LICENSE" in names


def test_the_wheel_asks_for_the_sdk_alone(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(archive.read(info).decode())
    needs = metadata.get_all("Requires-Dist") or []
    bare = {need.split("<")[0].split(">")[0].split("=")[0] for need in needs if "extra ==" not in need}
    assert bare == {"grpcio", "msgspec", "protobuf"}
    extras = {"server", "gpu", "flashinfer", "otel", "nodes", "sim", "fuzz", "dev"}
    assert set(metadata.get_all("Provides-Extra") or []) == extras
    scripts = archive.read(info.replace("METADATA", "entry_points.txt")).decode()
    assert "dunlin = cli.main:main" in scripts


def test_a_bare_install_imports_nothing_heavy(wheel: Path, tmp_path: Path) -> None:
    fetched = pip(
        sys.executable, "download", "--dest", str(tmp_path / "wheels"), "--no-deps", "grpcio", "msgspec", "protobuf"
    )
    if fetched.returncode != 0:
        pytest.skip("pip reaches no index")
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "bare")], check=True, env=outside())
    python = tmp_path / "bare" / "bin" / "python"
    installed = pip(python, "install", str(wheel))
    assert installed.returncode == 0, installed.stdout + installed.stderr
    listed = json.loads(pip(python, "list", "--format", "json").stdout)
    present = {package["name"].lower().replace("-", "_") for package in listed}
    assert present <= {"dunlin", "grpcio", "msgspec", "protobuf", "typing_extensions", "pip", "setuptools"}
    run = subprocess.run([str(python), "-I", "-c", ALONE], capture_output=True, text=True, cwd=tmp_path, env=outside())
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert Path(seen["file"]).is_relative_to(tmp_path / "bare")
    assert heavy(seen["all"]) == []
    assert not [name for name in seen["light"] if name.split(".")[0] in ("grpc", "google")]


def test_heavy_modules_are_recognised() -> None:
    assert heavy(["torch.nn", "services", "simulator.cluster.host_cpu", "grpc", "dunlin.client"]) == [
        "torch.nn",
        "services",
        "simulator.cluster.host_cpu",
    ]
