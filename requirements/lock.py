"""Writes requirements/ci.lock: the exact versions that `make install` uses (run it by `make lock`).

pip resolves what pyproject.toml asks for (the project, `server` and `dev`) as if nothing were installed. Local versions
(`torch==2.13.0+cpu`) lose their suffix and no hash is kept: which build of torch arrives is the index's business.
Arguments go to pip (`--extra-index-url …`): without the CPU builds in reach the lock would name CUDA packages.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "ci.lock"
HEADER = """\
# Exact versions for `make install` and CI: the project with the extras `server` and `dev`.
# Written by `make lock`; any index that carries these versions will do.
"""


def wanted(project: dict[str, Any]) -> list[str]:
    """Everything pyproject.toml asks for, without `gpu`."""
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["server"], *extras["dev"]]


def resolve(requirements: list[str], options: list[str]) -> list[str]:
    """Ask pip for one consistent set; return `name==version` lines sorted by name."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    answer = subprocess.run([*command, *options, *requirements], check=True, stdout=subprocess.PIPE, text=True)
    packages = [item["metadata"] for item in json.loads(answer.stdout)["install"]]
    return sorted(f"{package['name'].lower()}=={package['version'].split('+')[0]}" for package in packages)


def main() -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = resolve(wanted(project), sys.argv[1:])
    cuda = [line for line in lines if line.startswith("nvidia-")]
    if cuda:
        print(f"lock: pip chose the CUDA build of torch ({cuda[0]}, …); pass the index of CPU builds", file=sys.stderr)
        return 1
    LOCK.write_text(HEADER + "\n".join(lines) + "\n")
    print(f"{LOCK.relative_to(ROOT)}: {len(lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
