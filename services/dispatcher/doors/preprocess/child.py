"""`python -m services.dispatcher.doors.preprocess.child`: preprocesses large bodies for the dispatcher that started it.

It has a lower priority than the engines on its node, and its memory is bounded: a client's body can end this process,
never the dispatcher. Test: `test_pool.py`, which starts it.
"""

import argparse
import ctypes
import gc
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dunlin.limits import InvalidField
from dunlin.messages.types import Grammar
from dunlin.runtime.parent_death import ParentGone, die_with_parent
from dunlin.runtime.priority import lower_priority
from dunlin.structured_output.compiler import GrammarCompiler, GrammarError
from dunlin.text.tokenizer import load_chat_template, load_tokenizer
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.generation.prompts import PromptEncoder
from services.dispatcher.doors.generation.served_model import ServedModel
from services.dispatcher.doors.openai.request import ParsedRequest
from services.dispatcher.doors.preprocess.codec import PreprocessOutcome, encode
from services.dispatcher.doors.preprocess.grammar_checks import decode_grammar
from services.dispatcher.doors.preprocess.helper import ANSWER_FRAME, READY_FRAME, receive_frame, send_frame
from services.dispatcher.doors.preprocess.preprocessor import BodyKind, Preprocessed, Preprocessor

MAX_MEMORY_BYTES = 4 << 30
"""The limit of the process's data segment (RLIMIT_DATA)."""
CANNOT_START = 2
"""The exit code where the parent is gone already."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the parent until it closes the socket; the exit code."""
    given = _parser().parse_args(arguments)
    for one in (signal.SIGINT, signal.SIGTERM):  # they may reach a whole control group; the parent ends this one
        signal.signal(one, signal.SIG_IGN)
    try:
        die_with_parent(given.parent_pid)
    except ParentGone as error:
        print(f"dunlin preprocess: {error}", file=sys.stderr)
        return CANNOT_START
    lower_priority(given.nice)
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    connection = socket.socket(fileno=given.socket_fd)
    reader = BodyReader(_model(given))
    # The garbage collector would scan millions of objects again and again while they are made: `_serve` runs it after
    # each body instead.
    gc.freeze()
    gc.disable()
    try:
        while True:
            _serve(connection, reader)
    except (EOFError, ConnectionError):
        return 0


class BodyReader:
    """Reads bodies of all kinds for one model."""

    def __init__(self, model: ServedModel) -> None:
        self._preprocessor = Preprocessor(model, PromptEncoder(model))
        self._grammars = GrammarCompiler(model.folder, model.vocabulary, model.eos_ids)

    def prepare(self, kind: BodyKind) -> None:
        """Load what bodies of the kind need beyond the model; what that raises, `outcome` does."""
        if kind is BodyKind.GRAMMAR:
            with suppress(GrammarError):
                self._grammars.load()

    def outcome(self, kind: BodyKind, data: bytes) -> PreprocessOutcome:
        """What `Preprocessor.read` returns or raises; for a grammar that compiles, an empty request."""
        try:
            if kind is BodyKind.GRAMMAR:
                self._compile(decode_grammar(data))
                return Preprocessed(ParsedRequest(()), ())
            return self._preprocessor.read(kind, data)
        except (InvalidField, DoorError) as error:
            return error

    def _compile(self, grammar: Grammar) -> None:
        try:
            self._grammars.check(grammar)
        except GrammarError as error:
            raise InvalidField("grammar", f"cannot be kept to: {error}") from error


def _serve(connection: socket.socket, reader: BodyReader) -> None:
    what, data = receive_frame(connection)
    reader.prepare(BodyKind(what))
    send_frame(connection, READY_FRAME)
    outcome = reader.outcome(BodyKind(what), bytes(data))
    send_frame(connection, ANSWER_FRAME, *encode(outcome))
    del data, outcome
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # give the memory of a huge body back to the kernel


def _model(given: argparse.Namespace) -> ServedModel:
    return ServedModel(
        name=given.name,
        max_positions=given.max_positions,
        vocabulary=given.vocabulary,
        eos_ids=tuple(given.eos_ids),
        tokenizer=load_tokenizer(given.folder),
        template=load_chat_template(given.folder),
        folder=given.folder,
        adapters={name: digest for digest, _, name in (each.partition("=") for each in given.adapters)},
    )


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m {__spec__.name}" if __spec__ else None)
    made.add_argument("--socket-fd", type=int, required=True)
    made.add_argument("--parent-pid", type=int, required=True)
    made.add_argument("--nice", type=int, default=0)
    made.add_argument("--folder", type=Path, required=True)
    made.add_argument("--name", required=True)
    made.add_argument("--max-positions", type=int, required=True)
    made.add_argument("--vocabulary", type=int, required=True)
    made.add_argument("--eos-ids", type=int, nargs="*", required=True)
    made.add_argument("--adapter", dest="adapters", action="append", default=[], metavar="DIGEST=NAME")
    return made


if __name__ == "__main__":
    sys.exit(main())
