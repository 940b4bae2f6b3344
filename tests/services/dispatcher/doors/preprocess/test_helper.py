"""The socket to a helper process: frames arrive whole, and an end in the middle of one is noticed. Its command line."""

import socket
import threading

import pytest

from services.dispatcher.doors.preprocess import helper as helper_module
from services.dispatcher.doors.preprocess.child import BodyReader
from services.dispatcher.doors.preprocess.helper import (
    FRAME_HEADER,
    READY_FRAME,
    READY_WITHIN_S,
    HelperNotReady,
    HelperProcess,
    receive_frame,
    send_frame,
)
from services.dispatcher.doors.preprocess.preprocessor import BodyKind
from tests.services.dispatcher.running_doors import model


def test_a_frame_arrives_as_one_whatever_its_parts() -> None:
    ours, theirs = socket.socketpair()
    large = bytes(range(256)) * 8_192
    with ours, theirs:
        sending = threading.Thread(target=send_frame, args=(ours, 2, b"ab", b"", large))
        sending.start()
        kind, data = receive_frame(theirs)
        sending.join()
        assert (kind, bytes(data)) == (2, b"ab" + large)
        send_frame(ours, 0)
        assert receive_frame(theirs) == (0, bytearray())


@pytest.mark.parametrize("sent", [b"", FRAME_HEADER.pack(1, 9)[:4], FRAME_HEADER.pack(1, 9) + b"half"])
def test_a_socket_that_is_closed_in_a_frame_is_an_end(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(sent)
        ours.close()
        with pytest.raises(EOFError):
            receive_frame(theirs)


def test_a_model_may_be_called_anything() -> None:
    helper = HelperProcess(model(name="-m"), nice=0, within_s=300.0)
    try:
        read = helper.read(BodyKind.COMPLETION, [b'{"model": "-m", "prompt": "Once"}'])
        assert len(read.prompts) == 1
    finally:
        helper.kill()


class PlayedChild(HelperProcess):
    """Its child is played by the test, at the socket `child`."""

    def _start(self) -> socket.socket:
        ours, self.child = socket.socketpair()
        return ours


def test_the_time_for_a_body_begins_when_the_child_is_ready_for_it() -> None:
    helper = PlayedChild(model(), nice=0, within_s=77.0)
    lost: list[BaseException] = []

    def read() -> None:
        try:
            helper.read(BodyKind.GRAMMAR, [b"x"])
        except Exception as error:
            lost.append(error)

    ours = helper._started()
    reading = threading.Thread(target=read)
    reading.start()
    assert receive_frame(helper.child) == (BodyKind.GRAMMAR, bytearray(b"x"))
    assert ours.gettimeout() == READY_WITHIN_S
    send_frame(helper.child, READY_FRAME)
    while ours.gettimeout() != 77.0:
        pass
    helper.child.close()
    reading.join()
    assert "has died over this one of 1 bytes" in str(lost[0])


def test_a_child_that_is_never_ready_is_the_fault_of_no_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper_module, "READY_WITHIN_S", 0.001)
    with pytest.raises(HelperNotReady, match=r"not ready to read requests within 0\.001 s"):
        PlayedChild(model(), nice=0, within_s=300.0).read(BodyKind.GRAMMAR, [b"x"])


def test_a_child_loads_the_tokenizer_for_grammars_before_it_is_ready_for_one() -> None:
    reader = BodyReader(model())
    reader.prepare(BodyKind.COMPLETION)
    assert reader._grammars._tokenizer is None
    reader.prepare(BodyKind.GRAMMAR)
    assert reader._grammars._tokenizer is not None
