"""Nodes at a switch: what is cut is cut, in the direction that was said, without a word, and comes back."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks.harness.namespaces import NoNamespaces
from benchmarks.harness.node_network import NodeNetwork, node_network

pytestmark = pytest.mark.cluster

PORT = 7000
SERVE = f"""
import socket
with socket.create_server(("0.0.0.0", {PORT})) as server:
    print("ready", flush=True)
    while True:
        peer, _ = server.accept()
        try:
            while said := peer.recv(99):
                peer.sendall(said)
        except OSError as error:
            print(type(error).__name__, flush=True)
"""
ASK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), float(sys.argv[3])) as peer:
        peer.sendall(b"word")
        print(peer.recv(99).decode())
except TimeoutError:
    print("silence")
"""
HOLD = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as peer:
    print("connected", flush=True)
    try:
        print(peer.recv(99))
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture(scope="module")
def network() -> Iterator[NodeNetwork]:
    try:
        with node_network(3) as made:
            yield made
    except NoNamespaces as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.fixture(scope="module")
def server(network: NodeNetwork) -> Iterator["subprocess.Popen[str]"]:
    """On node 0."""
    command = network.inside(0, [sys.executable, "-S", "-c", SERVE])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def ask(network: NodeNetwork, node: int, limit_s: float = 30.0) -> str:
    """What a client on `node` hears of the server; `limit_s` is short where it is to hear nothing."""
    command = [sys.executable, "-S", "-c", ASK, network.hosts[0], str(PORT), str(limit_s)]
    done = subprocess.run(network.inside(node, command), capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.usefixtures("server")
def test_a_cut_between_two_nodes_is_silent_and_the_others_do_not_notice(network: NodeNetwork) -> None:
    network.cut(1, 0)
    assert ask(network, 1, 0.3) == "silence"
    assert ask(network, 2) == "word"
    network.mend(1, 0)
    assert ask(network, 1) == "word"
    network.cut(0, 1)
    assert ask(network, 1, 0.3) == "silence"
    network.mend(0, 1)
    assert ask(network, 1) == "word"


@pytest.mark.usefixtures("server")
def test_a_node_alone_hears_none_and_rejoins(network: NodeNetwork) -> None:
    network.isolate(0)
    assert [ask(network, node, 0.3) for node in (1, 2)] == ["silence", "silence"]
    network.rejoin(0)
    assert [ask(network, node) for node in (1, 2)] == ["word", "word"]


@pytest.mark.usefixtures("server")
def test_a_slow_node_is_reached_and_mending_what_is_whole_does_nothing(network: NodeNetwork) -> None:
    network.slow(0, 64)
    assert ask(network, 1) == "word"
    for _ in range(2):
        network.hurry(0)
        network.mend(0, 1)
        network.rejoin(0)
    assert ask(network, 1) == "word"


@pytest.mark.usefixtures("server")
def test_a_stream_that_breaks_tells_its_own_end(network: NodeNetwork) -> None:
    command = network.inside(1, [sys.executable, "-S", "-c", HOLD, network.hosts[0], str(PORT)])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "connected\n"
        network.break_streams(1, 0)
        assert held.stdout.readline() == "ConnectionAbortedError\n"
