"""Splits the text of an answer into content and tool calls, as it comes. What is no call stays content."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from services.dispatcher.doors.tools.formats import ToolFormat

_HEAD = r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"%s"\s*:\s*(?=\{)'
MOST_HEAD_CHARACTERS = 512
"""Of a call up to its arguments, to be told as it comes: a longer one comes whole. A head is looked for with every
piece of text, which must not cost more the longer the text gets.
"""
_SEPARATORS = r"[\s,;\[\]]"


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A part of call `index`: its `id` and `name` in the first part, more of its arguments (JSON text) in each."""

    index: int
    arguments: str
    id: str = ""
    name: str = ""


@dataclass(slots=True)
class ParsedText:
    """What one piece of text adds."""

    content: str = ""
    calls: list[CallDelta] | None = None

    def add(self, call: CallDelta) -> None:
        """One more part of a call."""
        self.calls = [*(self.calls or ()), call]


class ObjectScanner:
    """Finds the end of a JSON object, fed in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_string = False
        self._is_escaped = False

    def feed(self, text: str) -> int | None:
        """How many characters of `text` are up to the object's end; None: it goes on."""
        for at, character in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._is_string:
                self._is_escaped, self._is_string = character == "\\", character != '"'
            elif character == '"':
                self._is_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return at + 1
        return None


class NamedHead:
    """What stands before the arguments of a call that is no object: `name[ARGS]`, or `name[CALL_ID]id[ARGS]`."""

    def __init__(self, kind: ToolFormat) -> None:
        mark, its_id = re.escape(kind.arguments_mark), re.escape(kind.id_mark)
        self._pattern = re.compile(rf"\s*([\w.-]{{1,64}})(?:{its_id}\s*\w{{1,64}}\s*)?{mark}\s*(?=\{{)")
        ends = (f"x{kind.id_mark}x{kind.arguments_mark}{{", f"x{kind.arguments_mark}{{")
        self._missing = [end[at:] for end in ends for at in range(len(end))]

    def match(self, text: str) -> tuple[str, int] | None:
        """The name, and the characters of the head; None: the text does not begin with one."""
        found = self._pattern.match(text)
        return None if found is None else (found[1], found.end())

    def may_become(self, text: str) -> bool:
        """Whether more text can make a head of it."""
        return len(text) <= MOST_HEAD_CHARACTERS and any(self._pattern.match(text + more) for more in self._missing)


class ToolCallParser:
    """Parses one answer. `identity` names it, so that its calls' ids are the same whenever it is sent again.

    Calls beyond `most_calls` are left out.
    """

    def __init__(self, kind: ToolFormat, identity: str, most_calls: int | None = None) -> None:
        self.calls = 0
        self._kind = kind
        self._identity = identity
        self._most_calls = most_calls
        self._head = re.compile(_HEAD % kind.arguments_key)
        between = r"\s" if kind.arguments_mark else _SEPARATORS  # a list has brackets and commas, too
        self._separators = re.compile(f"(?:{_no_beginning_of(kind.start)}{between})*")
        self._named = NamedHead(kind) if kind.arguments_mark else None
        self._rest = ""
        self._state: Callable[[ParsedText], bool] = self._in_content
        self._body = ""
        self._whole = ObjectScanner()
        self._arguments: ObjectScanner | None = None
        self._has_arguments = False
        self._passed = ""  # marks and separators that are content unless a call follows
        self._is_after_call = False

    def read(self, text: str, is_last: bool) -> ParsedText:
        """What a piece of the answer adds; after the last one nothing is kept back."""
        added = self.push(text)
        if is_last:
            added.content += self.finish().content
        return added

    def push(self, text: str) -> ParsedText:
        """What more text adds; some may be kept back until it is known what it is."""
        self._rest += text
        added = ParsedText()
        while self._state(added):
            pass
        return added

    def finish(self) -> ParsedText:
        """The text has ended: what was kept back."""
        added = ParsedText()
        if self._state == self._in_call and self._arguments is None:
            added.content = self._passed + self._body + self._rest
        elif self._state == self._in_content:
            added.content = self._rest
        elif self._state == self._in_name or (self._state == self._between and not self._is_after_call):
            added.content = self._passed + self._rest
        self._rest = ""
        return added

    # Each state takes what it can of `_rest`, and returns whether another one may go on.

    def _in_content(self, added: ParsedText) -> bool:
        start = self._kind.start
        if not start:
            return self._at_beginning()
        at = self._rest.find(start)
        if at >= 0:
            added.content += self._rest[:at]
            self._rest, self._state = self._rest[at + len(start) :], self._after_start
            self._passed, self._is_after_call = start, False
            return True
        held = next((size for size in range(len(start) - 1, 0, -1) if self._rest.endswith(start[:size])), 0)
        cut = len(self._rest) - held
        added.content += self._rest[:cut]
        self._rest = self._rest[cut:]
        return False

    def _at_beginning(self) -> bool:
        """Without a mark the first character decides."""
        if not self._rest.strip():
            return False
        self._state = self._between if self._rest.lstrip().startswith("{") else self._in_text
        return True

    def _in_text(self, added: ParsedText) -> bool:
        added.content += self._rest
        self._rest = ""
        return False

    def _between(self, added: ParsedText) -> bool:
        found = self._separators.match(self._rest)
        self._pass(found.end() if found else 0)
        if not self._rest:
            return False
        for mark in filter(None, (self._kind.end, self._kind.start)):
            if self._rest.startswith(mark):
                self._is_after_call = self._is_after_call and mark == self._kind.end
                self._pass(len(mark))
                self._state = self._after_start if mark == self._kind.start else self._between
                return True
            if mark.startswith(self._rest):
                return False
        if self._rest.startswith("{") and self._named is None:
            self._enter_call(None)
        else:
            self._leave(added)
        return True

    def _in_name(self, added: ParsedText) -> bool:
        """Up to the arguments of a call that is no object."""
        assert self._named is not None
        found = self._named.match(self._rest)
        if found is not None:
            name, size = found
            self._begin(added, name)
            self._rest = self._rest[size:]
            self._enter_call(ObjectScanner())
        elif self._named.may_become(self._rest):
            return False
        else:
            self._leave(added)
        return True

    @property
    def _after_start(self) -> Callable[[ParsedText], bool]:
        return self._between if self._named is None else self._in_name

    def _enter_call(self, arguments: ObjectScanner | None) -> None:
        self._body, self._whole, self._arguments = "", ObjectScanner(), arguments
        self._has_arguments = False
        self._state = self._in_call

    def _leave(self, added: ParsedText) -> None:
        """No call follows: what was passed over is content."""
        added.content += self._passed
        self._passed = ""
        self._state = self._in_content if self._kind.start else self._in_text

    def _pass(self, characters: int) -> None:
        """Pass over marks and separators. Those that end a call are no content, whatever follows."""
        passed, self._rest = self._rest[:characters], self._rest[characters:]
        if not self._is_after_call:
            self._passed += passed

    def _in_call(self, added: ParsedText) -> bool:
        end = self._whole.feed(self._rest)
        more, self._rest = self._rest[:end], "" if end is None else self._rest[end:]
        self._body += more
        if self._arguments is not None:
            self._add_arguments(added, more)
        elif (found := self._head.match(self._body[:MOST_HEAD_CHARACTERS])) and (name := _text(found[1])) is not None:
            self._begin(added, name)
            self._arguments = ObjectScanner()
            self._add_arguments(added, self._body[found.end() :])
        elif end is not None:
            self._take_whole(added)
        if end is None:
            return False
        self._state = self._between
        return True

    def _take_whole(self, added: ParsedText) -> None:
        """The object is complete, and not in the usual order: it is a call if it has the keys of one."""
        try:
            call = json.loads(self._body, strict=False, parse_constant=_refuse)
            arguments = call.get(self._kind.arguments_key)
            spelled = json.dumps(arguments, ensure_ascii=False)
            f"{call.get('name')} {spelled}".encode()
        except (ValueError, RecursionError):
            call, arguments, spelled = {}, None, ""
        if isinstance(call.get("name"), str) and isinstance(arguments, dict):
            self._begin(added, call["name"], spelled)
        else:
            added.content += self._passed + self._body
            self._passed, self._is_after_call = "", False

    def _begin(self, added: ParsedText, name: str, arguments: str = "") -> None:
        self.calls += 1
        self._passed, self._is_after_call = "", True
        if not self._is_left_out:
            digest = blake2b(f"{self._identity}/{self.calls}".encode(), digest_size=12).hexdigest()
            size = self._kind.id_characters
            identity = digest[:size] if size < len(digest) else f"call_{digest}"
            added.add(CallDelta(self.calls - 1, arguments, identity, name))

    def _add_arguments(self, added: ParsedText, text: str) -> None:
        assert self._arguments is not None
        if self._has_arguments:
            return
        end = self._arguments.feed(text)
        if not self._is_left_out and text[:end]:
            added.add(CallDelta(self.calls - 1, text[:end]))
        self._has_arguments = end is not None

    @property
    def _is_left_out(self) -> bool:
        return self._most_calls is not None and self.calls > self._most_calls


def _no_beginning_of(start: str) -> str:
    """Matches nothing, where neither `start` nor, at the end of the text, what may become it stands."""
    if not start:
        return ""
    cut = "|".join(re.escape(start[:size]) for size in range(1, len(start)))
    return rf"(?!{re.escape(start)}|(?:{cut})\Z)"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _text(spelled: str) -> str | None:
    """The text of a JSON string; None: it has none. Models escape what JSON does not (`\\_`), and half a character."""
    try:
        text = str(json.loads(spelled, strict=False))
        text.encode()
    except ValueError:
        return None
    return text
