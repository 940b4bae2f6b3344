"""Starts a fork server: `python -m dunlin.runtime.fork_server`, by `ForkServer`."""

import argparse
import socket
import sys

from dunlin.runtime.fork_server.server import preload, run, serve
from dunlin.runtime.parent_death import ParentGone, die_with_parent


def main() -> int:
    parser = argparse.ArgumentParser("python -m dunlin.runtime.fork_server")
    parser.add_argument("--connection-fd", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("modules", nargs="*")
    given = parser.parse_args()
    try:
        die_with_parent(given.parent_pid)
    except ParentGone as error:
        print(f"dunlin fork server: {error}", file=sys.stderr)
        return 1
    preload(given.modules)
    request = serve(socket.socket(fileno=given.connection_fd))
    if request is not None:
        run(request)
    return 0


if __name__ == "__main__":
    sys.exit(main())
