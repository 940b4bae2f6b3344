"""Whether doors answer, by whatever listens there."""

import socket
import threading

import pytest

from cli.launch.readiness import http_answers


@pytest.mark.parametrize(
    ("said", "answers"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\n\r\n", False),
        (b"SSH-2.0-OpenSSH\r\n", False),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", False),
        (b"", False),
    ],
)
def test_only_a_door_answers(said: bytes, answers: bool) -> None:
    def serve() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(4096)
            peer.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        assert http_answers(f"http://127.0.0.1:{listener.getsockname()[1]}/health") is answers
        server.join()
