"""What a change of the .proto files breaks for processes of the last release: compared descriptor by descriptor.

`proto/released.binpb` is the descriptor set of the last release; `make released` writes it anew, which is done at a
release and at no other time. It knows no test.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)

RENAMED: dict[str, str] = {
    "Arrived": "RegionArrived",
    "CancelMove": "CancelTransfer",
    "CancelMove.move": "ticket",
    "Finish": "FinishReason",
    "HandOver": "Handoff",
    "Interrupt.sequences": "sequence",
    "Move": "Transfer",
    "Move.move": "ticket",
    "MoveDone": "TransferDone",
    "MoveDone.move": "ticket",
    "MoveKind": "TransferKind",
    "MoveStatus": "TransferStatus",
    "Order": "GroupOrder",
    "OrderDone": "GroupOrderDone",
    "OrderRefused": "GroupOrderRefused",
    "Origin": "CallOrigin",
    "Part": "GroupRole",
    "Progress": "EngineProgress",
    "Reach": "DialPeer",
    "RegionsTaken": "RegionsRevoked",
    "Rejected": "RejectedOption",
    "Room": "HandoffTarget",
    "Sampling": "SamplingParams",
    "Seek": "RequestCopies",
    "Shed": "Evacuate",
    "ShedDone": "EvacuateDone",
    "Sought": "CopiesSent",
    "StepInterrupted": "Interrupted",
    "StepInterrupted.sequences": "sequence",
    "Take": "AcceptOffer",
    "Taken": "AdoptedElsewhere",
    "Tier": "TierReady",
    "Vacated": "ReservationLost",
    "Unsupported.move": "ticket",
    "Writing": "PendingWrites",
}
"""Types, and fields that mean what they meant, which have another name since the last release, by the old one. The
monitor of that release cannot read a recorded reason under its new name, and counts it as lost: the changelog says so.
Emptied at a release."""


@dataclass(frozen=True, slots=True)
class Wire:
    """All types and services of some files, by name."""

    messages: Mapping[str, DescriptorProto]
    enums: Mapping[str, EnumDescriptorProto]
    services: Mapping[str, ServiceDescriptorProto]

    @classmethod
    def of(cls, files: Iterable[FileDescriptorProto]) -> "Wire":
        every = list(files)
        return cls(
            {one.name: one for file in every for one in file.message_type},
            {one.name: one for file in every for one in file.enum_type},
            {one.name: one for file in every for one in file.service},
        )


def broken(released: Wire, now: Wire, renamed: Mapping[str, str] = RENAMED) -> list[str]:
    """What the two sides of a wire would understand differently, one complaint each; additions are none."""
    return [*_messages(released, now, renamed), *_enums(released, now, renamed), *_services(released, now, renamed)]


def _is_given_up(name: str, released: Wire, now: Wire, renamed: Mapping[str, str]) -> bool:
    """Whether every field that had the message has left its number reserved: it is unknown to this tree, like they."""
    users = [
        (now.messages.get(renamed.get(user.name, user.name)), field.number)
        for user in released.messages.values()
        for field in user.field
        if field.type_name.rpartition(".")[2] == name
    ]
    return len(users) > 0 and all(user is not None and number in _reserved(user) for user, number in users)


def _messages(released: Wire, now: Wire, renamed: Mapping[str, str]) -> Iterator[str]:
    for name, old in released.messages.items():
        new = now.messages.get(renamed.get(name, name))
        if new is None:
            if not _is_given_up(name, released, now, renamed):
                yield f"{name}: the message is gone"
            continue
        fields = {field.number: field for field in new.field}
        for number in fields.keys() & _reserved(old):
            yield f"{name}.{fields[number].name} = {number}: the number was reserved, and is never used again"
        for field in old.field:
            at = f"{name}.{field.name} = {field.number}"
            if field.number in fields:
                yield from _field(at, field, fields[field.number], renamed, renamed.get(f"{name}.{field.name}"))
            elif field.number not in _reserved(new):
                yield f"{at}: the field is gone; leave its number in `reserved`"


def _reserved(message: DescriptorProto) -> set[int]:
    return {number for span in message.reserved_range for number in range(span.start, span.end)}


def _field(
    at: str, old: FieldDescriptorProto, new: FieldDescriptorProto, renamed: Mapping[str, str], new_name: str | None
) -> Iterator[str]:
    type_name = _short(old.type_name)
    name = renamed.get(type_name, type_name)
    # A conversation's envelope names its fields after their messages.
    if new.name not in (old.name, new_name) and (not old.HasField("oneof_index") or type_name not in renamed):
        yield f"{at}: the number is {new.name}'s now; a number is never used again"
    if (old.type, name, old.label) != (new.type, _short(new.type_name), new.label):
        yield f"{at}: its type was another"
    if (old.proto3_optional, old.HasField("oneof_index")) != (new.proto3_optional, new.HasField("oneof_index")):
        yield f"{at}: absence means something else now"


def _enums(released: Wire, now: Wire, renamed: Mapping[str, str]) -> Iterator[str]:
    for name, old in released.enums.items():
        new = now.enums.get(renamed.get(name, name))
        if new is None:
            yield f"{name}: the enumeration is gone"
            continue
        there = {value.number: _item(new, value.name) for value in new.value}
        for value in old.value:
            item = _item(old, value.name)
            if there.get(value.number) != item:
                yield f"{name}.{item} = {value.number}: it is {there.get(value.number, 'gone')} now"


def _item(enum: EnumDescriptorProto, value: str) -> str:
    """The value's name without that of its enumeration, which all values of a .proto begin with."""
    prefix = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in enum.name).lstrip("_")
    return value.removeprefix(f"{prefix}_")


def _services(released: Wire, now: Wire, renamed: Mapping[str, str]) -> Iterator[str]:
    for name, old in released.services.items():
        there = {method.name: method for method in now.services[name].method} if name in now.services else {}
        for method in old.method:
            new = there.get(method.name)
            ends = [_short(end) for end in (method.input_type, method.output_type)]
            if new is None:
                yield f"{name}.{method.name}: the method is gone"
            elif [renamed.get(end, end) for end in ends] != [_short(new.input_type), _short(new.output_type)]:
                yield f"{name}.{method.name}: it takes or gives another message"
            elif (method.client_streaming, method.server_streaming) != (new.client_streaming, new.server_streaming):
                yield f"{name}.{method.name}: it streams otherwise"


def _short(type_name: str) -> str:
    return type_name.rpartition(".")[2]
