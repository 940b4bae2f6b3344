"""Text of WordNet 3.0 (Debian's package `wordnet-base`): what common nouns mean, and example sentences."""

import re
from collections.abc import Iterator
from pathlib import Path

MOST_GLOSS = 90
"""Longer definitions are left out, in characters: a small model does not keep them."""
_UNFIT = re.compile(
    r"sex|drug|kill|genital|excrement|racist|naked|whore|slut|breast|slave|negro|nigger|murder|rape", re.I
)


def definitions(folder: Path, count: int) -> dict[str, str]:
    """What the `count` nouns that occur most often mean, each in its most frequent sense."""
    glosses = {}
    for line in (folder / "data.noun").read_text(encoding="latin-1").splitlines():
        if line.startswith(" "):
            continue
        head, _, tail = line.partition(" | ")
        fields = head.split()
        gloss = re.sub(r"\([^)]*\)", "", tail).split(";")[0].strip().rstrip(".:")
        glosses[fields[0]] = " ".join(gloss.split())
    offsets = _first_senses(folder)
    found: dict[str, str] = {}
    for word in _by_frequency(folder):
        gloss = glosses.get(offsets.get(word, ""), "")
        if 12 <= len(gloss) <= MOST_GLOSS and '"' not in gloss and not _UNFIT.search(word + gloss):
            found[word] = gloss
        if len(found) == count:
            break
    return found


def _first_senses(folder: Path) -> dict[str, str]:
    """The synset of each noun's first sense; capitalised words and phrases have none here."""
    senses = {}
    for line in (folder / "index.noun").read_text(encoding="latin-1").splitlines():
        fields = line.split()
        if not line.startswith(" ") and fields[0].isalpha() and len(fields[0]) > 2:
            senses[fields[0]] = fields[6 + int(fields[3])]
    return senses


def _by_frequency(folder: Path) -> list[str]:
    """Nouns by how often their first sense is met in WordNet's tagged texts."""
    counts = {}
    for line in (folder / "cntlist.rev").read_text(encoding="latin-1").splitlines():
        key, sense, count = line.split()
        word, _, lexical = key.partition("%")
        if lexical.startswith("1:") and sense == "1":
            counts[word] = int(count)
    return sorted(counts, key=lambda word: (-counts[word], word))


def sentences(folder: Path) -> Iterator[str]:
    """The examples of use that stand in the glosses, as sentences."""
    for part in ("noun", "verb", "adj", "adv"):
        for line in (folder / f"data.{part}").read_text(encoding="latin-1").splitlines():
            for example in re.findall(r'"([^"]+)"', line.partition(" | ")[2]):
                words = example.split()
                if 5 <= len(words) <= 16 and example.isascii() and "`" not in example and not _UNFIT.search(example):
                    yield example[0].upper() + example[1:].rstrip(" ;,.") + ("" if example[-1] in "?!" else ".")
