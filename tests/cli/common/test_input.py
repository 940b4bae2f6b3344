"""Standard input is UTF-8, whatever the locale, or refused in one line."""

import io
import sys

import pytest

from cli.common.errors import USAGE, CliError
from cli.common.input import input_lines, input_text


def give(monkeypatch: pytest.MonkeyPatch, data: bytes, encoding: str, errors: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding=encoding, errors=errors))


LOCALES = pytest.mark.parametrize(
    ("encoding", "errors"), [("utf-8", "strict"), ("utf-8", "surrogateescape"), ("latin-1", "strict")]
)


@LOCALES
def test_utf_8_is_read_whatever_the_locale(monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str) -> None:
    give(monkeypatch, "grüß\ndich\n".encode(), encoding, errors)
    assert input_text() == "grüß\ndich\n"
    give(monkeypatch, "grüß\ndich\n".encode(), encoding, errors)
    assert list(input_lines()) == ["grüß\n", "dich\n"]


@LOCALES
def test_what_is_not_utf_8_is_refused_with_the_byte(
    monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str
) -> None:
    give(monkeypatch, b"ab\xff", encoding, errors)
    with pytest.raises(CliError, match=r"not UTF-8 \(invalid start byte 0xff\)") as refused:
        input_text()
    assert refused.value.code == USAGE
    give(monkeypatch, b"ab\xff", encoding, errors)
    with pytest.raises(CliError, match="not UTF-8"):
        list(input_lines())
