"""Whether grammars compile: found out in a helper process, once for each grammar. Knows no text and no prompt."""

import asyncio
import json
from collections import OrderedDict
from hashlib import blake2b

from dunlin.limits import InvalidField
from dunlin.messages.door import RejectionCode
from dunlin.messages.types import Grammar, GrammarKind
from services.dispatcher.admission.refusals import STOPPING_TEXT, DoorError
from services.dispatcher.doors.preprocess.helper import HelperNotReady
from services.dispatcher.doors.preprocess.lanes import PreprocessLane
from services.dispatcher.doors.preprocess.preprocessor import BodyKind

MOST_KNOWN = 4_096
"""Grammars that compiled are remembered by their hashes, the last used ones."""


class GrammarChecks:
    """Owns a lane for grammars alone, and the hashes of those that compiled. One grammar is compiled once at a time."""

    def __init__(self, lane: PreprocessLane) -> None:
        self._lane = lane
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[str]] = {}

    async def check(self, name: str, grammar: Grammar) -> None:
        """Check a grammar that the field `name` asks for.

        Raises:
            InvalidField: it does not compile, or needs too much time or memory.
            DoorError: too many grammars at once.
        """
        digest = blake2b(f"{grammar.kind} {grammar.text}".encode(), digest_size=16).digest()
        if digest not in self._known:
            # Shielded: others may wait for the same one.
            fault = await asyncio.shield(self._running.get(digest) or self._started(digest, grammar))
            if fault:
                raise InvalidField(name, fault)
            self._known[digest] = None
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(digest)

    def shut_down(self) -> None:
        """End the helper process."""
        self._lane.shut_down()

    def _started(self, digest: bytes, grammar: Grammar) -> "asyncio.Task[str]":
        task = self._running[digest] = asyncio.create_task(self._fault_of(grammar))

        def forget(done: "asyncio.Task[str]") -> None:
            del self._running[digest]
            if not done.cancelled():
                done.exception()  # those that waited may be gone

        task.add_done_callback(forget)
        return task

    async def _fault_of(self, grammar: Grammar) -> str:
        """Why the grammar cannot be taken; empty: it can. Raises DoorError as `check`."""
        try:
            await self._lane.read(BodyKind.GRAMMAR, [encode_grammar(grammar)])
        except InvalidField as error:
            return error.text
        except HelperNotReady:
            raise
        except DoorError as error:
            if error.code is not RejectionCode.UNAVAILABLE or error.detail == STOPPING_TEXT:
                raise
            # The helper process was too slow, or has died: sent again, the grammar would end the next one too.
            return "takes too much time or memory to compile: send a simpler one"
        return ""


def encode_grammar(grammar: Grammar) -> bytes:
    """The body of a check."""
    return json.dumps([int(grammar.kind), grammar.text]).encode()


def decode_grammar(data: bytes) -> Grammar:
    """What `encode_grammar` was given."""
    kind, text = json.loads(data)
    return Grammar(GrammarKind(kind), text)
