"""Runs one service as a process: event loop, log, tie to the parent, exit code. Knows no gRPC."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from dunlin.runtime.parent_death import ParentGone, die_with_parent
from dunlin.wire.errors import StartError
from dunlin.wire.service.options import ServiceOptions

_CANNOT_START = 2


def run_service(options: ServiceOptions, main: Callable[[], Coroutine[Any, Any, int]], about: str = "") -> int:
    """Run `main` to its end; returns the exit code: its own, or 2 after one clear line when it could not start. `about`
    is the first line of its log.

    Call it from the main thread: signals and the tie to the parent need it.
    """
    name = f"{options.role}/{options.name}"
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format=f"%(asctime)s {name} %(levelname)s %(message)s", force=True
    )
    if about:
        logging.getLogger(__name__).info(about)
    try:
        if options.parent_pid:
            die_with_parent(options.parent_pid)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())
    except (StartError, ParentGone) as error:
        print(f"dunlin {name}: {error}", file=sys.stderr, flush=True)
        return _CANNOT_START
    except KeyboardInterrupt:
        return 130
