"""The explanation of a simulated request is made from the reasons of its decisions alone."""

import pytest

from dunlin.effects import Address, Message
from dunlin.messages.lifecycle import Admitted
from simulator.cluster.scripted import ScriptedCluster
from simulator.study.explanation import explain_request


def decisions() -> list[tuple[float, Address, Address, Message]]:
    """All decisions of a cluster that answered two requests."""
    cluster = ScriptedCluster()
    cluster.run_until_ready()
    cluster.submit([1, 2, 3], 4)
    cluster.submit([4, 5, 6], 4)
    cluster.run_until_done()
    return [sent for sent in cluster.world.sent if getattr(sent[3], "why", None) is not None]


def test_each_decision_about_the_request_is_a_sentence_in_order_of_time() -> None:
    made = decisions()
    (first, second) = sorted({sent[3].request for sent in made if isinstance(sent[3], Admitted)})
    lines = explain_request(made, first)
    assert "ordered instance-0 into local group 1" in lines[0]
    handed = [line for line in lines if "dispatcher-0 handed it to instance-" in line]
    assert len(handed) == 1
    assert "dispatcher-0 ended it (length) after 4 tokens" in lines[-1]
    assert not any(second in line for line in lines)


def test_a_request_that_is_not_known_has_no_explanation() -> None:
    assert explain_request([], "req-1-1") == ()
    assert explain_request(decisions(), "req-ffff-1") == ()


def test_what_is_no_public_id_is_refused() -> None:
    with pytest.raises(ValueError, match="'nonsense'"):
        explain_request([], "nonsense")
