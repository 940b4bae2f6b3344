"""A process of the last release and one of this tree understand each other; and what would break that is noticed."""

from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from dunlin.wire.codec import PAIRS
from tests.wire.compatibility import Wire, broken

Change = Callable[[FileDescriptorProto], object]


def files_of_this_tree() -> list[FileDescriptorProto]:
    return [FileDescriptorProto.FromString(generated.DESCRIPTOR.serialized_pb) for _, generated in PAIRS]


def dispatch_file() -> FileDescriptorProto:
    return next(file for file in files_of_this_tree() if file.name.endswith("dispatch.proto"))


def test_the_last_release_understands_this_tree(root: Path) -> None:
    """Failed? Give the field its own number back, or put a removed field's number into its message's `reserved`."""
    released = FileDescriptorSet.FromString((root / "proto/released.binpb").read_bytes())
    assert released.file
    assert broken(Wire.of(released.file), Wire.of(files_of_this_tree())) == []


class FieldsOf:
    """The fields of one message of a file, to be changed."""

    def __init__(self, file: FileDescriptorProto, name: str) -> None:
        self.descriptor = next(one for one in file.message_type if one.name == name)

    def field(self, name: str) -> FieldDescriptorProto:
        return next(one for one in self.descriptor.field if one.name == name)

    def remove(self, name: str) -> int:
        number = self.field(name).number
        self.descriptor.field.remove(self.field(name))
        return number


def reserve(file: FileDescriptorProto) -> None:
    refused = FieldsOf(file, "Refused")
    number = refused.remove("reason")
    refused.descriptor.reserved_range.add(start=number, end=number + 1)


def renumber(file: FileDescriptorProto) -> None:
    FieldsOf(file, "Refused").field("reason").number = 9


def reuse(file: FileDescriptorProto) -> None:
    refused = FieldsOf(file, "Refused")
    number = refused.remove("reason")
    refused.descriptor.field.add(name="detail", number=number, type="TYPE_STRING", label="LABEL_OPTIONAL")


def retype(file: FileDescriptorProto) -> None:
    FieldsOf(file, "Accepted").field("eta_s").type = FieldDescriptorProto.TYPE_FLOAT


def make_optional(file: FileDescriptorProto) -> None:
    ended = FieldsOf(file, "Ended")
    ended.descriptor.oneof_decl.add(name="_attempt")
    ended.field("attempt").proto3_optional = True
    ended.field("attempt").oneof_index = 0


def swap_bodies(file: FileDescriptorProto) -> None:
    event = FieldsOf(file, "DispatchEvent")
    failed, poisoned = event.field("failed"), event.field("poisoned")
    failed.number, poisoned.number = poisoned.number, failed.number


def move_a_value(file: FileDescriptorProto) -> None:
    file.enum_type[0].value[2].number = 17


def remove_a_message(file: FileDescriptorProto) -> None:
    file.message_type.remove(FieldsOf(file, "Ended").descriptor)


def give_up_a_message(file: FileDescriptorProto) -> None:
    remove_a_message(file)
    event = FieldsOf(file, "DispatchEvent")
    number = event.remove("ended")
    event.descriptor.reserved_range.add(start=number, end=number + 1)


def unstream(file: FileDescriptorProto) -> None:
    file.service[0].method[0].client_streaming = False


def add(file: FileDescriptorProto) -> None:
    FieldsOf(file, "Refused").descriptor.field.add(name="more", number=99, type="TYPE_INT64", label="LABEL_OPTIONAL")
    file.message_type.add(name="Stalled").field.add(name="request", number=1, type="TYPE_INT64")
    FieldsOf(file, "DispatchEvent").descriptor.field.add(
        name="stalled", number=99, type="TYPE_MESSAGE", type_name=".dunlin.v1.Stalled", oneof_index=0
    )
    file.enum_type[0].value.add(name="REFUSAL_MORE", number=50)


def change(by: Change) -> list[str]:
    changed = dispatch_file()
    by(changed)
    return broken(Wire.of([dispatch_file()]), Wire.of([changed]))


@pytest.mark.parametrize(
    "by",
    [lambda file: None, add, reserve, give_up_a_message],
    ids=["nothing", "additions", "a reserved number", "a message whose fields are reserved"],
)
def test_what_the_last_release_understands_is_no_complaint(by: Change) -> None:
    assert change(by) == []


@pytest.mark.parametrize(
    ("by", "complaint"),
    [
        (lambda file: FieldsOf(file, "Refused").remove("reason"), "Refused.reason = 3: the field is gone"),
        (renumber, "Refused.reason = 3: the field is gone"),
        (reuse, "Refused.reason = 3: the number is detail's now"),
        (retype, "Accepted.eta_s = 4: its type was another"),
        (make_optional, "Ended.attempt = 2: absence means something else now"),
        (swap_bodies, "DispatchEvent.poisoned = 20: the number is failed's now"),
        (move_a_value, "Refusal.NOT_READY = 2: it is gone now"),
        (remove_a_message, "Ended: the message is gone"),
        (unstream, "Dispatch.Attach: it streams otherwise"),
    ],
)
def test_what_the_last_release_would_misunderstand_is(by: Change, complaint: str) -> None:
    assert any(one.startswith(complaint) for one in change(by))


def test_a_number_that_was_reserved_stays_free() -> None:
    was, now = dispatch_file(), dispatch_file()
    FieldsOf(was, "Ended").descriptor.reserved_range.add(start=3, end=4)
    FieldsOf(now, "Ended").descriptor.field.add(name="tokens", number=3, type="TYPE_INT64", label="LABEL_OPTIONAL")
    assert broken(Wire.of([was]), Wire.of([now])) == [
        "Ended.tokens = 3: the number was reserved, and is never used again"
    ]


def test_a_type_may_have_another_name_if_that_is_said() -> None:
    changed = dispatch_file()
    FieldsOf(changed, "Refused").descriptor.name = "Declined"
    body = FieldsOf(changed, "DispatchEvent").field("refused")
    body.name, body.type_name = "declined", ".dunlin.v1.Declined"
    was, now = Wire.of([dispatch_file()]), Wire.of([changed])
    assert broken(was, now, renamed={"Refused": "Declined"}) == []
    assert "Refused: the message is gone" in broken(was, now, renamed={})
