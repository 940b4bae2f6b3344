"""The agent of the NIXL library, with a library that the test plays."""

import sys
from pathlib import Path
from typing import Any

import pytest

from dunlin.messages.exchange import TransferAgent
from dunlin.transport.one_sided.agent import AgentError, WriteState
from dunlin.transport.one_sided.nixl_agent import has_fast_network, open_nixl_agent
from dunlin.transport.one_sided.staging import StagingLayout


def test_asked_for_and_not_installed_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dunlin.transport.one_sided.nixl_agent.is_installed", lambda: False)
    with pytest.raises(AgentError, match=r"pip install 'dunlin\[nodes\]', or say --transport sockets"):
        open_nixl_agent("kvstore-0")


class PlayedLibrary:
    """The library's module and its one agent: notes what it is asked, and fails where `fails` says so."""

    def __init__(self) -> None:
        self.backends: tuple[str, ...] = ("UCX",)
        self.asked: list[tuple[Any, ...]] = []
        self.fails: set[str] = set()
        self.peer_name: Any = b"peer"
        self.state = "PROC"
        self.transfer_state = "PROC"
        self.news: dict[str, list[bytes]] = {}

    def nixl_agent_config(self, **settings: Any) -> dict[str, Any]:
        return settings

    def nixl_agent(self, name: str, config: dict[str, Any]) -> "PlayedLibrary":
        self._note("nixl_agent", name, config)
        return self

    def register_memory(self, places: list[Any], kind: str, backends: list[str]) -> str:
        self._note("register_memory", [size for _, size, *_ in places], kind, backends)
        return "registered"

    def get_partial_agent_metadata(self, *_: Any) -> bytes:
        return b"metadata"

    def add_remote_agent(self, metadata: bytes) -> Any:
        self._note("add_remote_agent", metadata)
        return self.peer_name

    def get_xfer_descs(self, places: list[Any], kind: str) -> Any:
        return [(address, size) for address, size, _ in places]

    def initialize_xfer(self, *asked: Any) -> str:
        self._note("initialize_xfer", *asked)
        return "handle"

    def transfer(self, handle: str) -> str:
        return self.transfer_state

    def check_xfer_state(self, handle: str) -> str:
        self._note("check_xfer_state", handle)
        return self.state

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        return self.news

    def __getattr__(self, name: str) -> Any:
        return lambda *asked: self._note(name, *asked)

    def _note(self, name: str, *asked: Any) -> None:
        self.asked.append((name, *asked))
        if name in self.fails:
            raise RuntimeError(f"no {name} today")


PEER = TransferAgent("peer", b"theirs", 1 << 20, 2, 2, 64)
CUT = StagingLayout(lanes=2, depth=2, chunk_bytes=64)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> PlayedLibrary:
    played = PlayedLibrary()
    for name in ("UCX_TLS", "NIXL_LOG_LEVEL"):  # set by opening an agent; restored after the test
        monkeypatch.setenv(name, "played")
    monkeypatch.setattr("dunlin.transport.one_sided.nixl_agent._build", lambda: "nixl_played")
    monkeypatch.setitem(sys.modules, "nixl_played._api", played)
    return played


def test_an_agent_registers_its_staging_memory_alone_and_says_how_it_is_cut(library: PlayedLibrary) -> None:
    agent = open_nixl_agent("kv", CUT)
    told = agent.descriptor
    assert told.name.startswith("kv-")
    assert open_nixl_agent("kv", CUT).descriptor.name != told.name
    assert (told.metadata, told.lanes, told.depth, told.chunk_bytes) == (b"metadata", 2, 2, 64)
    assert len(agent.staging) == 512
    settings = {"enable_prog_thread": False, "enable_listen_thread": False, "backends": ["UCX"]}
    assert library.asked[:2] == [("nixl_agent", told.name, settings), ("register_memory", [512], "DRAM", ["UCX"])]


def test_a_library_without_ucx_or_that_fails_is_told(library: PlayedLibrary) -> None:
    library.backends = ()
    with pytest.raises(AgentError, match="NIXL does not start: AgentError: this NIXL has no UCX"):
        open_nixl_agent("kv", CUT)
    library.backends, library.fails = ("UCX",), {"register_memory"}
    with pytest.raises(AgentError, match="NIXL does not start: RuntimeError: no register_memory today"):
        open_nixl_agent("kv", CUT)


@pytest.mark.parametrize("name", ["peer", b"peer"])
def test_a_peer_is_added_once_and_removed_once(library: PlayedLibrary, name: str | bytes) -> None:
    library.peer_name = name
    agent = open_nixl_agent("kv", CUT)
    agent.add_peer(PEER)
    agent.add_peer(PEER)
    agent.remove_peer("peer")
    agent.remove_peer("peer")
    told = [asked for asked in library.asked if "remote_agent" in asked[0]]
    assert told == [("add_remote_agent", b"theirs"), ("remove_remote_agent", "peer")]


def test_metadata_of_another_name_is_refused(library: PlayedLibrary) -> None:
    library.peer_name = "other"
    agent = open_nixl_agent("kv", CUT)
    with pytest.raises(AgentError, match="the metadata of peer is that of 'other'"):
        agent.add_peer(PEER)
    assert library.asked[-1] == ("remove_remote_agent", "other")
    with pytest.raises(AgentError, match="peer is no peer"):
        agent.notify("peer", b"hi")


def test_a_peer_that_left_by_itself_may_still_be_removed(library: PlayedLibrary) -> None:
    agent = open_nixl_agent("kv", CUT)
    agent.add_peer(PEER)
    library.fails = {"remove_remote_agent"}
    agent.remove_peer("peer")
    library.fails = {"send_notif"}
    agent.add_peer(PEER)
    with pytest.raises(AgentError, match="cannot notify peer: RuntimeError: no send_notif today"):
        agent.notify("peer", b"hi")


def test_a_write_names_both_places_and_the_notice(library: PlayedLibrary) -> None:
    agent = open_nixl_agent("kv", CUT)
    assert agent.write("peer", 256, 1 << 20, 64, b"there") == "handle"
    here = agent.descriptor.address + 256
    assert library.asked[-1] == (
        "initialize_xfer", "WRITE", [(here, 64)], [(1 << 20, 64)], "peer", b"there", ["UCX"],
    )  # fmt: skip
    library.transfer_state = "ERR"
    with pytest.raises(AgentError, match="it failed at once"):
        agent.write("peer", 256, 1 << 20, 64, b"there")
    assert ("release_xfer_handle", "handle") in library.asked


@pytest.mark.parametrize(
    ("said", "state"), [("DONE", WriteState.DONE), ("PROC", WriteState.PENDING), ("ERR", WriteState.FAILED)]
)
def test_the_state_of_a_write_is_the_librarys(library: PlayedLibrary, said: str, state: WriteState) -> None:
    agent = open_nixl_agent("kv", CUT)
    library.state = said
    assert agent.state("handle") is state
    library.fails = {"check_xfer_state"}
    assert agent.state("handle") is WriteState.FAILED


def test_notices_come_one_by_one_with_their_senders_name(library: PlayedLibrary) -> None:
    agent = open_nixl_agent("kv", CUT)
    library.news = {"a": [b"1", b"2"], "b": [b"3"]}
    assert agent.notices() == [("a", b"1"), ("a", b"2"), ("b", b"3")]


def test_closing_leaves_every_peer_and_gives_the_memory_back(library: PlayedLibrary) -> None:
    agent = open_nixl_agent("kv", CUT)
    agent.add_peer(PEER)
    agent.close()
    assert library.asked[-2:] == [("remove_remote_agent", "peer"), ("deregister_memory", "registered", ["UCX"])]


def test_a_fast_network_is_a_device_in_its_folder(tmp_path: Path) -> None:
    assert not has_fast_network(tmp_path / "none")
    assert not has_fast_network(tmp_path)
    (tmp_path / "mlx5_0").mkdir()
    assert has_fast_network(tmp_path)
