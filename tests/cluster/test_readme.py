"""What the README tells a new user to type works as printed, but for the port."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.launch.cluster_process import ClusterProcess

pytestmark = pytest.mark.cluster

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS: list[tuple[str, str]] = re.findall(r"^```(\w*)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def block(language: str, beginning: str) -> str:
    """The one block of that language with a line that begins so."""
    (found,) = [
        text
        for name, text in BLOCKS
        if name == language and any(line.startswith(beginning) for line in text.splitlines())
    ]
    return found


def run(cluster: ClusterProcess, *command: str) -> str:
    there = {"http://localhost:8000": cluster.http, "localhost:7070": cluster.grpc}
    words = list(command)
    for printed, real in there.items():
        words = [word.replace(printed, real) for word in words]
    assert words != list(command), "it names no door that could be replaced"
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_curl_line(chat_cluster: ClusterProcess) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    assert '"finish_reason"' in run(chat_cluster, "bash", "-c", block("", "curl "))


@pytest.mark.parametrize("beginning", ["from openai import", "import dunlin", "import json, openai"])
def test_the_lines_of_python(chat_cluster: ClusterProcess, beginning: str) -> None:
    assert run(chat_cluster, sys.executable, "-c", block("python", beginning)).strip()


def test_the_lines_of_openai_are_few() -> None:
    for beginning in ("from openai import", "import json, openai"):
        assert len([line for line in block("python", beginning).splitlines() if line]) <= 6
