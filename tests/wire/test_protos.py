"""The committed .proto files are what the messages say; what has no form on the wire is refused."""

import types
from pathlib import Path
from typing import Any

import pytest

from dunlin.messages import dispatch
from dunlin.messages.declare import Method, Parties, Subject, message, number
from dunlin.messages.types import I32, FinishReason, Why
from dunlin.wire.protos import VOCABULARIES, path_of, text_of, write


@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=lambda vocabulary: vocabulary.__name__)
def test_the_committed_file_is_up_to_date(root: Path, vocabulary: types.ModuleType) -> None:
    committed = (root / "proto" / path_of(vocabulary)).read_text(encoding="utf-8")
    assert committed == text_of(vocabulary), "run `make protos` and commit what it writes"


def test_every_file_is_made_of_messages_or_written_by_hand(root: Path) -> None:
    there = {path.relative_to(root / "proto") for path in (root / "proto").rglob("*.proto")}
    made = {path_of(vocabulary) for vocabulary in VOCABULARIES}
    assert {path.name for path in there - made} == {"etcd.proto", "public.proto"}
    assert made <= there


def vocabulary(**declared: Any) -> types.ModuleType:
    """A module that declares these."""
    made = types.ModuleType("dunlin.messages.sample", "One side ↔ another.")
    for name, value in declared.items():
        if isinstance(value, type):
            value.__module__ = made.__name__
        setattr(made, name, value)
    return made


@message(command=3, about=Subject.NOTHING, reserved=(4, 6))
class AskAgain:
    """Ask for `tokens`.

    A second paragraph.
    """

    tokens: I32 = number(1)
    finish: FinishReason = number(2)
    limit: int | None = number(7, default=None)
    names: tuple[str, ...] = number(3, default=())
    why: Why | None = number(5, default=None)


@message(command=2, event=9)
class Other:
    """Anything else."""


SAMPLE = """\
// Made of dunlin/messages/sample.py by `make protos`: edit that file, not this one.
//
// One side ↔ another.
syntax = "proto3";

package dunlin.v1;

import "dunlin/v1/types.proto";

// Ask for `tokens`.
//
// A second paragraph.
message AskAgain {
  bytes tokens = 1;  // packed int32
  FinishReason finish = 2;
  optional int64 limit = 7;
  repeated string names = 3;
  Why why = 5;
  reserved 4, 6;
}

// Anything else.
message Other {
}

// From the dialer (kvstore or monitor) to the acceptor (instance).
message SampleCommand {
  Header header = 1;
  oneof body {
    Other other = 2;
    AskAgain ask_again = 3;
  }
}

// From the acceptor (instance) to the dialer (kvstore or monitor).
message SampleEvent {
  Header header = 1;
  oneof body {
    Other other = 9;
  }
}

// One long-lived stream per pair of processes.
service Sample {
  rpc Attach(stream SampleCommand) returns (stream SampleEvent);
}

service Tool {
  rpc Ask(Other) returns (AskAgain);
}
"""


def test_a_vocabulary_becomes_a_file() -> None:
    parties = Parties("Sample", ("kvstore", "monitor"), "instance")
    ask = Method("dunlin.v1.Tool", "Ask", Other, AskAgain)
    assert text_of(vocabulary(PARTIES=parties, AskAgain=AskAgain, Other=Other, ASK=ask)) == SAMPLE


@message(command=2)
class Same:
    """Has the number of another."""


@message()
class Strange:
    """Has a field that no protobuf type can hold."""

    steps: frozenset[int] = number(1)


def test_two_messages_of_one_direction_need_two_numbers() -> None:
    parties = Parties("Sample", ("kvstore",), "instance")
    with pytest.raises(TypeError, match="the same number in one direction"):
        text_of(vocabulary(PARTIES=parties, Other=Other, Same=Same))


def test_a_type_without_a_form_on_the_wire_is_refused() -> None:
    with pytest.raises(TypeError, match=r"steps: .* has no form on the wire"):
        text_of(vocabulary(Strange=Strange))


def test_writing_touches_only_what_is_stale(root: Path, tmp_path: Path) -> None:
    (tmp_path / path_of(dispatch)).parent.mkdir(parents=True)
    assert len(write(tmp_path)) == len(VOCABULARIES)
    assert write(tmp_path) == []
    stale = tmp_path / path_of(dispatch)
    stale.write_text("")
    assert write(tmp_path) == [stale]
    assert stale.read_text(encoding="utf-8") == text_of(dispatch)
