"""Finding the cluster that a command is about, and opening the SDK on it."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from cli.common.errors import FAILED, UNREACHABLE, USAGE, CliError
from cli.launch.cluster_state import ClusterState, default_data_dir, read_state

if TYPE_CHECKING:
    from dunlin.client import Client


class ClientKeywords(TypedDict):
    """Keywords of the SDK's clients."""

    tls_dir: Path | None
    monitor: str


def find_endpoint(arguments: argparse.Namespace) -> str:
    """The gRPC door, `host:port`. Raises CliError when no cluster runs where the arguments point."""
    return str(arguments.endpoint) if arguments.endpoint else find_cluster(arguments.data_dir).grpc


def client_keywords(arguments: argparse.Namespace) -> ClientKeywords:
    """How to talk to it: keywords for the SDK."""
    state = None if arguments.endpoint else find_cluster(arguments.data_dir)
    tls_dir: Path | None = arguments.tls_dir
    if tls_dir is None and state is not None and state.tls_dir and "DUNLIN_TLS_DIR" not in os.environ:
        tls_dir = Path(state.tls_dir)
    return {"tls_dir": tls_dir, "monitor": state.monitor if state is not None else ""}


def find_cluster(given: Path | None) -> ClusterState:
    """The running cluster. Raises CliError when there is none."""
    data_dir = given or default_data_dir()
    state = read_state(data_dir)
    if state is None:
        again = f" --data-dir {given}" if given else ""
        raise CliError(
            f"no cluster runs in {data_dir}: start one with `dunlin up{again}`, or name one with --endpoint HOST:PORT",
            UNREACHABLE,
        )
    return state


@contextmanager
def connect(arguments: argparse.Namespace) -> "Iterator[Client]":
    """The SDK on that cluster; what goes wrong inside comes out as a CliError."""
    from dunlin.client import Client

    endpoint = find_endpoint(arguments)
    with sdk_errors_as_cli(endpoint), Client(endpoint, **client_keywords(arguments)) as client:
        yield client


@contextmanager
def sdk_errors_as_cli(endpoint: str) -> "Iterator[None]":
    """Turns the SDK's errors into CliErrors."""
    from dunlin.client import DunlinError, InvalidRequest, NotAuthenticated, Unavailable

    try:
        yield
    except Unavailable as error:
        if error.retry_after_s:  # a dispatcher did answer
            raise CliError(str(error), UNREACHABLE) from None
        doubts = f"is `dunlin up` running, is {endpoint} its gRPC door, and is --tls-dir right?"
        raise CliError(f"no cluster answers: {error}; {doubts}", UNREACHABLE) from None
    except InvalidRequest as error:
        raise CliError(str(error), USAGE) from None
    except NotAuthenticated as error:
        raise CliError(f"{error}; this command takes the key from DUNLIN_API_KEY", FAILED) from None
    except DunlinError as error:
        name = f"{error.request}: " if error.request else ""
        raise CliError(f"{name}{error}", FAILED) from None
