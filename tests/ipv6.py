"""Whether this machine has IPv6: containers often have none, not even the loopback's."""

import contextlib
import socket

import pytest


def _is_there() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False


needs_ipv6 = pytest.mark.skipif(not _is_there(), reason="this machine has no IPv6")
