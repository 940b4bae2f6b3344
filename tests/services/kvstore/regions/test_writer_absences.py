"""Writers and their absences: streams by name, registrations, process ids and numbers."""

import pytest

from dunlin.effects import Address
from dunlin.messages.membership import Member
from services.kvstore.regions.writer_absences import ConnectedWriters, WriterAbsences
from tests.services.kvstore.bench import OTHER, RESTARTED, WRITER, member


def test_connected_writers_are_found_by_address_and_listed_by_name() -> None:
    writers = ConnectedWriters()
    for writer in (RESTARTED, OTHER, WRITER, RESTARTED):
        writers.add(writer)
    assert writers.incarnations(WRITER) == [RESTARTED, WRITER]
    writers.remove(RESTARTED)
    assert RESTARTED not in writers
    assert WRITER in writers
    assert writers.incarnations(RESTARTED) == [WRITER]
    assert Address("kvstore", WRITER.name, WRITER.incarnation) not in writers


def test_the_last_stream_of_a_name_leaves_nothing() -> None:
    writers = ConnectedWriters()
    writers.add(WRITER)
    writers.remove(WRITER)
    assert writers.incarnations(WRITER) == []
    with pytest.raises(KeyError):
        writers.remove(WRITER)


@pytest.mark.parametrize(
    ("one", "pid"),
    [
        (member(WRITER, pid=77), 77),
        (member(WRITER, pid=1), 1),
        (member(WRITER, pid=77, node="other"), None),
        (member(WRITER, pid=0), None),
        (member(WRITER, pid=-1), None),
        (member(Address("kvstore", "i0", 10), pid=77), None),
    ],
)
def test_the_process_id_of_an_instance_of_this_node_is_known(one: Member, pid: int | None) -> None:
    absences = WriterAbsences("n")
    absences.record_member(one)
    assert absences.pid_of(one.address) == pid
    assert len(absences) == (pid is not None)


def test_an_ended_registration_is_known_until_the_writer_registers_again() -> None:
    absences = WriterAbsences("n")
    absences.record_member(member(WRITER))
    absences.registration_ended(WRITER)
    assert absences.has_registration_ended(WRITER)
    assert absences.pid_of(WRITER) == 77, "the process may still run"
    absences.record_member(member(WRITER, pid=78))
    assert not absences.has_registration_ended(WRITER)
    assert absences.pid_of(WRITER) == 78


def test_absences_are_numbered_from_one_and_never_alike() -> None:
    absences = WriterAbsences("n")
    assert [absences.next_absence() for _ in range(3)] == [1, 2, 3]


def test_a_forgotten_writer_leaves_nothing() -> None:
    absences = WriterAbsences("n")
    absences.record_member(member(OTHER, pid=5))
    absences.record_member(member(WRITER))
    absences.registration_ended(RESTARTED)
    absences.registration_ended(WRITER)
    assert (len(absences), absences.with_process_id()) == (3, [OTHER, WRITER])
    absences.forget(WRITER)
    absences.forget(WRITER)
    assert (len(absences), absences.with_process_id()) == (2, [OTHER])
    assert not absences.has_registration_ended(WRITER)
