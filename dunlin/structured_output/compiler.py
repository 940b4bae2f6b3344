"""Compiles grammars for the tokenizer of one checkpoint, by llguidance.

Dispatchers' helper processes compile a grammar to find out whether it is valid, engines to sample by it: with the same
limits, so that what a door takes an engine takes.
"""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from random import Random

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from dunlin.messages.types import Grammar, GrammarKind
from dunlin.structured_output.matcher import GrammarMatcher

PARSER_LIMITS = LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=100_000,
    precompute_large_lexemes=False,
    verbose_errors=False,
)
"""They bound time and memory of one grammar, counted in llguidance's own units: the same on every machine."""
MOST_COMPILED = 32
"""Grammars that are kept compiled, the last used ones."""
MOST_ERROR_CHARACTERS = 300
MOST_WHITESPACE = 32
"""Characters of white space in one place of a JSON text, where a schema says nothing else."""
CHECKED_TOKENS = 16
"""Tokens of a text that are tried before a grammar is taken: some limits are met only on the way."""
_WHITESPACE = rf"[\x20\x0A\x0D\x09]{{1,{MOST_WHITESPACE}}}"


class GrammarError(ValueError):
    """A grammar that cannot be compiled; the text says why, and is meant for the client."""


class GrammarCompiler:
    """Owns a tokenizer of the checkpoint in `folder`, loaded for the first grammar, and the last compiled grammars.

    `vocabulary` is the number of the model's logits, `eos_ids` its end tokens.
    """

    def __init__(self, folder: Path, vocabulary: int, eos_ids: Sequence[int]) -> None:
        self._folder = folder
        self._vocabulary = vocabulary
        self._eos_ids = tuple(eos_ids)
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def load(self) -> None:
        """Load the tokenizer now.

        Raises:
            GrammarError: the model has no end token, or a tokenizer that llguidance cannot read.
        """
        if self._tokenizer is None:
            self._tokenizer = self._load()

    def matcher(self, grammar: Grammar) -> GrammarMatcher:
        """A matcher at the beginning of a text.

        Raises:
            GrammarError: the grammar is invalid or too large, or as `load`.
        """
        self.load()
        assert self._tokenizer is not None
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = _compile(self._tokenizer, grammar)
            self._compiled[grammar] = compiled
            if len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return GrammarMatcher(compiled.deep_copy(), self._vocabulary, self._eos_ids)

    def check(self, grammar: Grammar) -> None:
        """Compile the grammar, and try the beginning of one text.

        Raises:
            GrammarError: as `matcher`, or the text cannot begin, or go on.
        """
        matcher, draw = self.matcher(grammar), Random(0)
        for _ in range(CHECKED_TOKENS):
            allowed = matcher.allowed(self._eos_ids).nonzero()[0]
            if not len(allowed):
                raise GrammarError(_brief(matcher.error))
            token = int(allowed[draw.randrange(len(allowed))])
            if token in self._eos_ids:
                return
            matcher.consume((token,))

    def _load(self) -> LLTokenizer:
        if not self._eos_ids:
            raise GrammarError("the model has no end token, with which a constrained text could end")
        path, eos = str(self._folder / "tokenizer.json"), self._eos_ids[0]
        try:
            try:
                return LLTokenizer(path, n_vocab=self._vocabulary, eos_token=eos)
            except ValueError:  # special tokens may lie beyond (`check_tokenizer_matches_model`); masks end before them
                return LLTokenizer(path, eos_token=eos)
        except Exception as error:  # the library raises what its parser says
            raise GrammarError(f"the model's tokenizer cannot be constrained ({_brief(error)})") from None


def _compile(tokenizer: LLTokenizer, grammar: Grammar) -> LLMatcher:
    try:
        compiled = LLMatcher(tokenizer, _serialised(grammar), log_level=0, limits=PARSER_LIMITS)
    except Exception as error:
        raise GrammarError(_brief(error)) from None
    if compiled.is_error():
        raise GrammarError(_brief(compiled.get_error()))
    return compiled


def _serialised(grammar: Grammar) -> str:
    """The grammar as llguidance's own JSON."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return str(LLMatcher.grammar_from_json_schema(grammar.text, defaults={"whitespace_pattern": _WHITESPACE}))
        case GrammarKind.REGEX:
            return str(LLMatcher.grammar_from_regex(grammar.text))
        case GrammarKind.LARK:
            return str(LLMatcher.grammar_from_lark(any_to_lark(grammar.text)))


def _brief(error: object) -> str:
    text = " ".join(str(error).removesuffix("<non-verbose/>").split())
    if not text or text.startswith("NoExtension"):
        return "no text matches it"
    return text if len(text) <= MOST_ERROR_CHARACTERS else f"{text[:MOST_ERROR_CHARACTERS]}…"
