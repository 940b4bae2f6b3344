"""Train the built-in model's tokenizer: a byte-level BPE over the words and phrases beside this file.

Run `python dunlin/text/data/make_tokenizer.py` to write `tokenizer.json` again beside this file; the same words give
the same file. Test of the result: tests/text/test_tokenizer.py.
"""

import itertools
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
VOCABULARY = 4096
PATTERN = r" ?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"
BOS, EOS, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]

VERB_ENDS = ["", "s", "ed", "ing", "er", "ers", "able", "ment"]
QUALITY_ENDS = ["", "ly", "er", "est", "ness"]
PREFIXES = ["re", "un", "over", "out", "mis", "pre", "inter"]


def words() -> dict[str, list[str]]:
    """The word lists of `words.txt` by their names."""
    sections = (HERE / "words.txt").read_text(encoding="utf-8").split("= ")
    return {name: listed.split() for name, _, listed in (section.partition("\n") for section in sections[1:])}


def corpus() -> list[str]:
    """Lines to train on: every word after a space, the common ones more often, and the phrases."""
    lists = words()
    lines = [
        phrase.replace("\\n", "\n") for phrase in (HERE / "phrases.txt").read_text(encoding="utf-8").splitlines()
    ] * 20
    lines += [" " + " ".join(lists["small"])] * 40
    for stem in lists["stems"]:
        root = stem[:-1] if stem.endswith("e") else stem
        forms = [stem + end if end in ("", "s") or end[0] not in "eia" else root + end for end in VERB_ENDS]
        lines += [" " + " ".join(forms)] * 3 + [" ".join([stem, stem.capitalize()])]
    for noun in lists["nouns"]:
        lines += [f" {noun} the {noun}s {noun}", f"{noun.capitalize()} {noun}"] * 3
    for quality in lists["qualities"]:
        lines += [" " + " ".join(quality + end for end in QUALITY_ENDS)] * 3 + [quality]
    lines += [f" {prefix}{stem}" for prefix, stem in itertools.product(PREFIXES, lists["stems"])]
    lines += [" " * count + "x" for count in (2, 4, 8, 12, 16)] * 20
    return lines


def train() -> Tokenizer:
    """A tokenizer of exactly `VOCABULARY` entries, special ones first."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(pattern=Regex(PATTERN), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BOS, EOS, PAD, *ROLES],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the corpus yields {tokenizer.get_vocab_size()} entries, not {VOCABULARY}: add words")
    return tokenizer


def main() -> None:
    text = json.dumps(json.loads(train().to_str()), ensure_ascii=False, indent=0, separators=(",", ":"))
    Path(__file__).with_name("tokenizer.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
