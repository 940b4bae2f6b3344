"""The parser of the command lines: one line that names what was probably meant."""

import pytest

from dunlin.runtime.arguments import CommandParser, DefaultsHelpFormatter


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    parser = CommandParser(prog="tool")
    parser.add_argument("--colour", choices=("red", "green"))
    parser.add_argument("--count", type=int)
    with pytest.raises(SystemExit) as left:
        parser.parse_args(words)
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--cuont", "1"), "tool: unknown option --cuont: did you mean --count? (see tool --help)\n"),
        (("--cuont=1",), "tool: unknown option --cuont: did you mean --count? (see tool --help)\n"),
        (("--zzz",), "tool: unknown option --zzz (see tool --help)\n"),
        (("more",), "tool: unexpected argument 'more' (see tool --help)\n"),
        (("--colour", "gren"), "did you mean green? (choose from red, green) (see tool --help)\n"),
        (("--colour", "zzz"), "invalid choice: 'zzz' (choose from red, green) (see tool --help)\n"),
        (("--count", "x"), "tool: argument --count: invalid int value: 'x' (see tool --help)\n"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    line = complaint(capsys, *words)
    assert line.endswith(said)
    assert line.count("\n") == 1


def test_help_tells_defaults_once() -> None:
    parser = CommandParser(prog="tool", formatter_class=DefaultsHelpFormatter)
    parser.add_argument("--count", default=3, help="how many")
    parser.add_argument("--size", default=4, help="how large (default: what fits)")
    parser.add_argument("--name", default="", help="what it is called")
    lines = [line.split(maxsplit=2)[2] for line in parser.format_help().splitlines() if line.startswith("  --")]
    assert lines == ["how many (default: 3)", "how large (default: what fits)", "what it is called"]
