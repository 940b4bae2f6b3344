"""`python -m services.dispatcher.doors.preprocess.child`: preprocesses large bodies for the dispatcher that started it.

It has a lower priority than the engines on its node, and its memory is bounded: a client's body can end this process,
never the dispatcher. Test: `test_pool.py`, which starts it.
"""

import argparse
import ctypes
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from dunlin.limits import InvalidField
from dunlin.runtime.parent_death import ParentGone, die_with_parent
from dunlin.text.tokenizer import load_chat_template, load_tokenizer
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.generation.prompts import PromptEncoder
from services.dispatcher.doors.generation.served_model import ServedModel
from services.dispatcher.doors.preprocess.codec import PreprocessOutcome, encode
from services.dispatcher.doors.preprocess.helper import ANSWER_FRAME, receive_frame, send_frame
from services.dispatcher.doors.preprocess.preprocessor import BodyKind, Preprocessor

MAX_MEMORY_BYTES = 4 << 30
"""The limit of the process's data segment (RLIMIT_DATA)."""
CANNOT_START = 2
"""The exit code where the parent is gone already."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the parent until it closes the socket; the exit code."""
    given = _parser().parse_args(arguments)
    for one in (signal.SIGINT, signal.SIGTERM):  # they reach the whole process group; the parent ends this one
        signal.signal(one, signal.SIG_IGN)
    try:
        die_with_parent(given.parent_pid)
    except ParentGone as error:
        print(f"dunlin preprocess: {error}", file=sys.stderr)
        return CANNOT_START
    os.nice(given.nice)
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    connection = socket.socket(fileno=given.socket_fd)
    preprocessor = _preprocessor(given)
    # The garbage collector would scan millions of objects again and again while they are made: `_serve` runs it after
    # each body instead.
    gc.freeze()
    gc.disable()
    try:
        while True:
            _serve(connection, preprocessor)
    except (EOFError, ConnectionError):
        return 0


def _serve(connection: socket.socket, preprocessor: Preprocessor) -> None:
    what, data = receive_frame(connection)
    outcome = _outcome(preprocessor, BodyKind(what), bytes(data))
    send_frame(connection, ANSWER_FRAME, *encode(outcome))
    del data, outcome
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # give the memory of a huge body back to the kernel


def _outcome(preprocessor: Preprocessor, kind: BodyKind, data: bytes) -> PreprocessOutcome:
    try:
        return preprocessor.read(kind, data)
    except (InvalidField, DoorError) as error:
        return error


def _preprocessor(given: argparse.Namespace) -> Preprocessor:
    model = ServedModel(
        name=given.name,
        max_positions=given.max_positions,
        vocabulary=given.vocabulary,
        eos_ids=(),
        tokenizer=load_tokenizer(given.folder),
        template=load_chat_template(given.folder),
        folder=given.folder,
    )
    return Preprocessor(model, PromptEncoder(model))


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m {__spec__.name}" if __spec__ else None)
    made.add_argument("--socket-fd", type=int, required=True)
    made.add_argument("--parent-pid", type=int, required=True)
    made.add_argument("--nice", type=int, default=0)
    made.add_argument("--folder", type=Path, required=True)
    made.add_argument("--name", required=True)
    made.add_argument("--max-positions", type=int, required=True)
    made.add_argument("--vocabulary", type=int, required=True)
    return made


if __name__ == "__main__":
    sys.exit(main())
