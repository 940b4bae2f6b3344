"""Mutants of source files: what is replaced by what, and a random order of them."""

import ast
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.mutation.operators import changes


@dataclass(frozen=True, slots=True)
class Mutant:
    """Bytes `[start, stop)` of a file, which begin in `line`, are replaced by `text`; they were `before`."""

    file: str
    line: int
    start: int
    stop: int
    before: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {' '.join(self.before.split())} -> {self.text}"

    @property
    def name(self) -> str:
        """The same as long as the code of its place is: line numbers move."""
        return f"{self.file} {self.before} -> {self.text}"

    def apply(self, source: bytes) -> bytes:
        """The file with the change."""
        return source[: self.start] + self.text.encode() + source[self.stop :]


def mutants_of(file: str, source: bytes) -> Iterator[Mutant]:
    """Every mutant of a file."""
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    for node, text in changes(ast.parse(source)):
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = offsets[node.lineno - 1] + node.col_offset
        stop = offsets[node.end_lineno - 1] + node.end_col_offset
        yield Mutant(file, node.lineno, start, stop, source[start:stop].decode(), text)


def draw(root: Path, files: Iterable[str], seed: int) -> list[Mutant]:
    """All mutants of the files in random order. The order of a file's mutants does not change with the other files."""
    drawn = []
    for file in files:
        draws = random.Random(f"{seed} {file}")
        drawn += [(draws.random(), mutant) for mutant in mutants_of(file, (root / file).read_bytes())]
    return [mutant for _, mutant in sorted(drawn, key=lambda each: each[0])]


def is_program(source: bytes) -> bool:
    """Whether the source can be loaded, as far as its grammar goes."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True
