"""A step is named by its rows."""

import pytest

from benchmarks.gpu.kernels import StepShape, step_shape


@pytest.mark.parametrize(
    ("text", "decode", "prompts"),
    [
        ("16x512", (512,) * 16, ()),
        ("512@15000", (), ((512, 15000),)),
        ("2x20+3*128@0+64@7", (20, 20), ((128, 0),) * 3 + ((64, 7),)),
        ("300", (), ((300, 0),)),
    ],
)
def test_rows_are_read_from_a_name(text: str, decode: tuple[int, ...], prompts: tuple[tuple[int, int], ...]) -> None:
    assert step_shape(text) == StepShape(text, decode, prompts)


@pytest.mark.parametrize("text", ["", "x", "16x", "a@b", "2*@5"])
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        step_shape(text)
