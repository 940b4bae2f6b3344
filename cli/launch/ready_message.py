"""What `dunlin up` says when it serves: one line for programs, and a few for people, about how to use it."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from cli.launch.cluster_state import ClusterState, default_data_dir
from dunlin.auth.certificates import CA


def ready_line(state: ClusterState) -> str:
    """`ready` and words of the form NAME=VALUE, quoted as a shell wants them."""
    words = {"model": state.model_name, "http": state.http, "grpc": state.grpc, "metrics": state.metrics}
    if state.tls_dir:
        words["ca"] = str(_ca(state))
    return " ".join(["ready", *(f"{name}={shlex.quote(value)}" for name, value in words.items())])


def hints(state: ClusterState, host: str, has_keys: bool) -> Iterator[str]:
    """How to use it from this machine, each a line."""
    there = "" if Path(state.data_dir) == default_data_dir() else f" --data-dir {shlex.quote(state.data_dir)}"
    url = f"{state.http.split(',')[0]}/v1"
    ca = f" --cacert {shlex.quote(str(_ca(state)))}" if state.tls_dir else ""
    key, api_key = (' -H "Authorization: Bearer $KEY"', "KEY") if has_keys else ("", '"any"')
    yield f"talk to it:   dunlin chat{there}"
    yield f"with curl:    curl{ca}{key} {url}/models"
    yield f'from Python:  openai.OpenAI(base_url="{url}", api_key={api_key})'
    if state.tls_dir:
        yield f"              with SSL_CERT_FILE={shlex.quote(str(_ca(state)))} in the environment"
    yield f"watch it:     dunlin top{there}, or {state.metrics} for Prometheus"
    if host in ("0.0.0.0", "::"):
        yield "it listens on every address of this machine, not only the one above"


def _ca(state: ClusterState) -> Path:
    return Path(state.tls_dir) / CA
