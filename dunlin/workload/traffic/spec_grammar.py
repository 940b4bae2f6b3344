"""The language of `--workload`: `kind:key=value,…`, values that are calls (`lognormal(512,128)`), mixes with ` + `.

    spec  = part { " + " part }
    part  = kind [ ":" items ]          call = name [ "(" items ")" ]
    items = item { "," item }           item = [ key "=" ] value

Commas within parentheses belong to the call. Knows the grammar and its errors; `kinds` knows the kinds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field


class WorkloadError(ValueError):
    """A workload that is not valid: the text names the place in the specification and the remedy."""


@dataclass(slots=True)
class SpecCall:
    """A name and its arguments. `source` is its text, for errors; `used` are the keys read so far."""

    name: str
    source: str
    values: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def wrong(self, complaint: str) -> WorkloadError:
        """An error about this call."""
        return WorkloadError(f"workload {self.source!r}: {complaint}")

    def place(self, *names: str) -> "SpecCall":
        """Name the positional values, in order. Raises WorkloadError for too many, or one given twice."""
        if len(self.values) > len(names):
            raise self.wrong(f"{self.name} takes at most {len(names)} values without a name ({', '.join(names)})")
        for name, value in zip(names, self.values, strict=False):
            if name in self.named:
                raise self.wrong(f"{name} is given twice")
            self.named[name] = value
        self.values = []
        return self

    def text(self, key: str, default: str | None = None) -> str:
        """The value of `key`. Raises WorkloadError if it is missing and there is no default."""
        self.used.add(key)
        value = self.named.get(key, default)
        if not value:
            raise self.wrong(f"{self.name} needs {key}=…")
        return value

    def has(self, key: str) -> bool:
        """Whether `key` was given."""
        self.used.add(key)
        return key in self.named

    def number(self, key: str, default: float | None = None, lowest: float = 0.0, above: bool = True) -> float:
        """A finite number above `lowest` (or from it on)."""
        text = self.text(key, None if default is None else repr(default))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < lowest or (above and value == lowest):
            raise self.wrong(f"{key} must be a number {'above' if above else 'from'} {lowest:g}, not {text!r}")
        return value

    def whole(self, key: str, default: int | None = None, lowest: int = 1, highest: int = 1 << 40) -> int:
        """A whole number."""
        text = self.text(key, None if default is None else str(default))
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if not lowest <= value <= highest:
            raise self.wrong(f"{key} must be a whole number from {lowest} to {highest}, not {text!r}")
        return value

    def finish(self) -> None:
        """Raises WorkloadError for a key that this call does not take."""
        unknown = [key for key in self.named if key not in self.used]
        if unknown:
            known = ", ".join(sorted(self.used))
            raise self.wrong(f"{self.name} knows no {', '.join(unknown)}; it takes {known}")


def split_mix(text: str) -> list[str]:
    """The parts of a mix."""
    return [part.strip() for part in text.split(" + ")]


def parse_part(text: str) -> SpecCall:
    """`kind:items`. Raises WorkloadError for what is no such thing."""
    kind, _, items = text.partition(":")
    return _filled(SpecCall(kind.strip(), text), items)


def parse_call(text: str, source: str) -> SpecCall:
    """`name(items)` or a bare name; `source` is the whole part, for complaints."""
    text = text.strip()
    name, opened, rest = text.partition("(")
    call = SpecCall(name.strip(), source)
    if opened and not rest.endswith(")"):
        raise call.wrong(f"{text!r} lacks its closing parenthesis")
    return _filled(call, rest[:-1])


def _filled(call: SpecCall, items: str) -> SpecCall:
    for item in split_arguments(items, call):
        key, equals, value = item.partition("=")
        if not equals or "(" in key:
            call.values.append(item)
        elif key.strip() in call.named:
            raise call.wrong(f"{key.strip()} is given twice")
        else:
            call.named[key.strip()] = value.strip()
    return call


def split_arguments(items: str, call: SpecCall) -> Iterator[str]:
    """The pieces between commas that no parenthesis holds."""
    depth, start = 0, 0
    for index, char in enumerate(items + ","):
        depth += (char == "(") - (char == ")")
        if depth < 0:
            raise call.wrong(f"a ) without its ( at {items[: index + 1]!r}")
        if char == "," and depth == 0:
            if piece := items[start:index].strip():
                yield piece
            start = index + 1
    if depth:
        raise call.wrong("a ( without its )")
