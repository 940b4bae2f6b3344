"""What a request may ask for: one schema, checked at the doors by name, and at instances before an engine sees it.

Knows no protocol and no text. A value is taken as it is or refused, never bent.
"""

from dataclasses import dataclass
from math import isnan
from reprlib import Repr
from typing import Any

from dunlin.messages.dispatch import Place
from dunlin.messages.types import I32, I64_LEAST, I64_MOST, Grammar, SamplingParams, i32

I32_MOST = (1 << 31) - 1
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 1024
MOST_STOP_IDS = 256
MOST_EOS_IDS = 64
"""A model's own; they travel with the client's stop ids."""
MOST_BIASES = 1024
MOST_ALLOWED_TOKENS = 4096
MOST_BAD_WORDS = 64
MOST_BAD_WORD_CHARACTERS = 256
MOST_BAD_TOKENS = 8192
"""Of all bad words together, each spelled in two ways."""
MOST_GRAMMAR_BYTES = 64 << 10
"""Of a JSON schema (as compact JSON), a regular expression, a grammar, or a list of choices made into one."""
MOST_LOGPROBS = 20
MOST_CHOICES = 128
MOST_TENANT_CHARACTERS = 256
MOST_NAME_CHARACTERS = 255
"""Of a client's own name for its request."""
MOST_KEY_CHARACTERS = 1024
"""Of a request's key, its name (with what the door adds to it), and its trace."""
MOST_PROMPT_CHARACTERS = 4 << 20
MOST_BODY_BYTES = 8 << 20
MOST_SHOWN = 40
MOST_SHOWN_NAME = 120
"""Characters of a client's value, and of a field's name, in a message."""

_BRIEF = Repr()
_BRIEF.maxlevel, _BRIEF.maxdict, _BRIEF.maxstring = 3, 6, 60


class InvalidField(ValueError):
    """A field that cannot be taken; `str()` says what is allowed. A name that is the client's own is cut."""

    def __init__(self, name: str, text: str) -> None:
        self.name = clip_text(escape_surrogates(name[: MOST_SHOWN_NAME + 1]), MOST_SHOWN_NAME)
        self.text = text
        super().__init__(f"{self.name}: {text}")


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """A whole number; 3.0 is none, and neither is true."""

    lowest: int
    highest: int

    def __call__(self, name: str, value: Any) -> int:
        """The value, or InvalidField."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidField(name, f"must be a whole number, not {brief_repr(value)}")
        if not self.lowest <= value <= self.highest:
            raise InvalidField(name, f"must be between {self.lowest} and {self.highest}, not {brief_repr(value)}")
        return value


@dataclass(frozen=True, slots=True)
class RealNumber:
    """A finite number; `above`: greater than `lowest`."""

    lowest: float
    highest: float
    above: bool = False

    def __call__(self, name: str, value: Any) -> float:
        """The value, or InvalidField."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidField(name, f"must be a number, not {brief_repr(value)}")
        if isnan(value) or not self.lowest <= value <= self.highest or (self.above and value == self.lowest):
            least = f"above {self.lowest:g}" if self.above else f"at least {self.lowest:g}"
            raise InvalidField(name, f"must be {least} and at most {self.highest:g}, not {brief_repr(value)}")
        return float(value)


def brief_repr(value: Any) -> str:
    """A client's value in a message: short, whatever it was, and found without spelling all of it."""
    if isinstance(value, int) and abs(value) > I64_MOST:
        return "a number of more than 64 bits"
    if isinstance(value, str | bytes):
        return clip_text(repr(value[: MOST_SHOWN + 1]), MOST_SHOWN)
    return clip_text(_BRIEF.repr(value), MOST_SHOWN)


def escape_surrogates(text: str) -> str:
    """The text with lone surrogates spelled out: JSON can have them, nothing that is encoded as UTF-8 can."""
    return text.encode(errors="backslashreplace").decode()


def clip_text(text: str, most: int) -> str:
    """The text, cut if it is longer."""
    return text if len(text) <= most else f"{text[:most]}…"


TEMPERATURE = RealNumber(0.0, 10.0)
TOP_K = WholeNumber(0, I32_MOST)
TOKEN = WholeNumber(0, I32_MOST)
BIAS = RealNumber(-100.0, 100.0)
SEED = WholeNumber(I64_LEAST, I64_MOST)
MAX_TOKENS = WholeNumber(1, I32_MOST)
OBJECTIVE_S = RealNumber(0.0, 86_400.0, above=True)
SAMPLING: dict[str, WholeNumber | RealNumber] = {
    "temperature": TEMPERATURE,
    "top_k": TOP_K,
    "top_p": RealNumber(0.0, 1.0, above=True),
    "min_p": RealNumber(0.0, 1.0),
    "presence_penalty": RealNumber(-2.0, 2.0),
    "frequency_penalty": RealNumber(-2.0, 2.0),
    "repetition_penalty": RealNumber(0.001, 10.0, above=True),  # less makes logits infinite
    "logprobs": WholeNumber(0, MOST_LOGPROBS),
    "prompt_logprobs": WholeNumber(0, MOST_LOGPROBS),
    "min_tokens": WholeNumber(0, I32_MOST),
}
"""The fields of `SamplingParams` that a client sets."""

_OF_SAMPLING = {**SAMPLING, "seed": SEED, "choice": WholeNumber(0, MOST_CHOICES - 1)}
_NAMES = ("tenant", "key", "idempotency", "trace", "adapter")


def placement_error(place: Place, vocabulary: int) -> str:
    """What no engine may be given, in words; empty: nothing. Whether it fits into an instance is not asked here."""
    try:
        _check_tokens(place, vocabulary)
        _check_sampling(place.sampling)
        check_vocabulary(place.sampling, i32(), vocabulary)
        _check_count("stop_token_ids", place.stop_ids, MOST_STOP_IDS + MOST_EOS_IDS)
        for name in _NAMES:
            _check_name(name, getattr(place, name))
    except InvalidField as error:
        return str(error)
    return ""


def check_vocabulary(sampling: SamplingParams, stop_ids: I32, vocabulary: int) -> None:
    """Raise InvalidField for a bias, a client's stop id, or an allowed or a bad token that is no token of the model.

    The model's own end tokens are not asked for here: some checkpoints name one that they do not have.
    """
    named = ("logit_bias", sampling.bias_tokens), ("stop_token_ids", stop_ids)
    for name, ids in (*named, ("allowed_token_ids", sampling.allowed_tokens), ("bad_words", sampling.bad_tokens)):
        if ids and max(ids) >= vocabulary:
            raise InvalidField(name, f"token id {max(ids)} is outside the vocabulary of {vocabulary}")


def _check_tokens(place: Place, vocabulary: int) -> None:
    MAX_TOKENS("max_tokens", place.max_tokens)
    WholeNumber(1, len(place.tokens))("prompt_tokens", place.prompt_tokens)
    WholeNumber(0, place.prompt_tokens - 1)("scored", place.scored)
    for token in (min(place.tokens), max(place.tokens)):
        if not 0 <= token < vocabulary:
            raise InvalidField("tokens", f"the model has no such token as {token}")


def _check_sampling(sampling: SamplingParams) -> None:
    for name, check in _OF_SAMPLING.items():
        value = getattr(sampling, name)
        if value is not None or name not in ("logprobs", "prompt_logprobs"):
            check(name, value)
    _check_count("logit_bias", sampling.bias_tokens, MOST_BIASES)
    if len(sampling.bias_tokens) != len(sampling.bias_values):
        raise InvalidField("logit_bias", f"{len(sampling.bias_values)} values for {len(sampling.bias_tokens)} tokens")
    for value in sampling.bias_values:
        BIAS("logit_bias", value)
    _check_count("allowed_token_ids", sampling.allowed_tokens, MOST_ALLOWED_TOKENS)
    _check_bad_words(sampling)
    check_grammar("grammar", sampling.grammar)


def _check_bad_words(sampling: SamplingParams) -> None:
    _check_count("bad_words", sampling.bad_tokens, MOST_BAD_TOKENS)
    starts, stops = [0, *sampling.bad_stops], [*sampling.bad_stops, len(sampling.bad_tokens)]
    if any(start >= stop for start, stop in zip(starts[:-1], stops[:-1], strict=True)) or starts[-1] != stops[-1]:
        raise InvalidField("bad_words", "their columns do not fit each other")


def check_grammar(name: str, grammar: Grammar | None) -> None:
    """Raise InvalidField for a grammar that is too long, or no Unicode; whether it can be compiled is not asked."""
    if grammar is None:
        return
    try:
        size = len(grammar.text.encode())
    except UnicodeEncodeError:  # lone surrogates, which JSON can express
        raise InvalidField(name, "is not valid Unicode text") from None
    if size > MOST_GRAMMAR_BYTES:
        raise InvalidField(name, f"has {size} bytes; at most {MOST_GRAMMAR_BYTES} are allowed")


def _check_count(name: str, ids: I32, most: int) -> None:
    if len(ids) > most:
        raise InvalidField(name, f"has {len(ids)} entries; at most {most} are allowed")
    if ids:
        TOKEN(name, min(ids))


def _check_name(name: str, value: str) -> None:
    most = MOST_TENANT_CHARACTERS if name == "tenant" else MOST_KEY_CHARACTERS
    if len(value) > most:
        raise InvalidField(name, f"has {len(value)} characters; at most {most} are allowed")
