"""Which engines are met: each is asked once for each agent, whoever of the instance needs it."""

from dunlin.effects import Address, Send
from dunlin.messages.engine import Forget, Meet, Met
from services.instance.engine.met_engines import MetEngines, PeerState
from simulator.engine.model import make_engine_ready

ENGINE, PEER, OTHER = Address("engine", "i"), Address("engine", "p"), Address("engine", "q")


def ready() -> MetEngines:
    met = MetEngines(ENGINE)
    met.on_engine_ready(make_engine_ready(agent=b"own"))
    return met


def test_a_peer_is_asked_for_once_until_its_agent_changes() -> None:
    met = ready()
    assert met.meet(PEER, b"a") == [Send(ENGINE, Meet(PEER, b"a"))]
    assert (met.meet(PEER, b"a"), met.state(PEER, b"a"), met.met) == ([], PeerState.ASKED, [])
    met.on_met(0.0, ENGINE, Met(PEER))
    assert (met.meet(PEER, b"a"), met.state(PEER, b"a"), met.met) == ([], PeerState.MET, [PEER])
    assert met.state(PEER, b"b") is None
    assert met.meet(PEER, b"b") == [Send(ENGINE, Meet(PEER, b"b"))]
    met.on_met(0.0, ENGINE, Met(PEER, "another node"))
    assert (met.meet(PEER, b"b"), met.state(PEER, b"b"), met.met) == ([], PeerState.UNREACHABLE, [])


def test_a_forgotten_peer_and_a_new_engine_are_met_anew() -> None:
    met = ready()
    for peer in (PEER, OTHER):
        met.meet(peer, b"a")
        met.on_met(0.0, ENGINE, Met(peer))
    assert met.forget(PEER) == Send(ENGINE, Forget(PEER))
    assert (met.met, met.state(PEER, b"a")) == ([OTHER], None)
    met.on_met(0.0, ENGINE, Met(PEER, agent=b"void before"))
    assert (met.agent, met.met) == (b"void before", [OTHER])
    met.on_engine_ready(make_engine_ready(agent=b"next"))
    assert (met.agent, met.met) == (b"next", [])
    met.on_engine_lost()
    assert met.agent == b""


def test_only_a_peer_that_could_not_be_reached_is_met_again() -> None:
    met = ready()
    assert met.meet_again(PEER, b"a") == [Send(ENGINE, Meet(PEER, b"a"))]
    assert met.meet_again(PEER, b"a") == []
    met.on_met(0.0, ENGINE, Met(PEER, "the connection failed"))
    assert met.meet_again(PEER, b"a") == [Send(ENGINE, Meet(PEER, b"a"))]
    assert (met.meet_again(PEER, b"a"), met.state(PEER, b"a")) == ([], PeerState.ASKED)
    met.on_met(0.0, ENGINE, Met(PEER))
    assert (met.meet_again(PEER, b"a"), met.met) == ([], [PEER])
