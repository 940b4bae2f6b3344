"""Whether grammars compile: found out in a helper process, once for each grammar. Knows no text and no prompt."""

import json
from collections import OrderedDict
from hashlib import blake2b

from dunlin.limits import InvalidField
from dunlin.messages.door import RejectionCode
from dunlin.messages.types import Grammar, GrammarKind
from services.dispatcher.admission.refusals import STOPPING_TEXT, DoorError
from services.dispatcher.doors.preprocess.lanes import PreprocessLane
from services.dispatcher.doors.preprocess.preprocessor import BodyKind

MOST_KNOWN = 4_096
"""Grammars that compiled are remembered by their hashes, the last used ones."""


class GrammarChecks:
    """Owns a lane for grammars alone, and the hashes of those that compiled."""

    def __init__(self, lane: PreprocessLane) -> None:
        self._lane = lane
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def check(self, name: str, grammar: Grammar) -> None:
        """Check a grammar that the field `name` asks for.

        Raises:
            InvalidField: it does not compile, or needs too much time or memory.
            DoorError: too many grammars at once.
        """
        body = encode_grammar(name, grammar)
        digest = blake2b(f"{grammar.kind} {grammar.text}".encode(), digest_size=16).digest()
        if digest not in self._known:
            await self._compile(name, body)
            self._known[digest] = None
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        self._known.move_to_end(digest)

    def shut_down(self) -> None:
        """End the helper process."""
        self._lane.shut_down()

    async def _compile(self, name: str, body: bytes) -> None:
        try:
            await self._lane.read(BodyKind.GRAMMAR, [body])
        except DoorError as error:
            if error.code is not RejectionCode.UNAVAILABLE or error.detail == STOPPING_TEXT:
                raise
            # The helper process was too slow, or has died: sent again, the grammar would end the next one too.
            raise InvalidField(name, "takes too much time or memory to compile: send a simpler one") from error


def encode_grammar(name: str, grammar: Grammar) -> bytes:
    """The body of a check: the grammar and the field that asks for it."""
    return json.dumps([name, int(grammar.kind), grammar.text]).encode()


def decode_grammar(data: bytes) -> tuple[str, Grammar]:
    """What `encode_grammar` was given."""
    name, kind, text = json.loads(data)
    return name, Grammar(GrammarKind(kind), text)
