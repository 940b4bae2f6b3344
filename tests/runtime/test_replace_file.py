"""A file is replaced as a whole, or stays what it was."""

import os
from pathlib import Path

import pytest

from dunlin.runtime.replace_file import replace_file
from tests.full_disk import no_room


def test_a_file_is_replaced_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for data in (b"old", b"new"):
        replace_file(path, data, 0o600)
        assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "f"
    replace_file(path, b"old")
    with no_room(), pytest.raises(OSError, match="File too large"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_rights_are_given_before_anything_is_in_it(tmp_path: Path) -> None:
    sizes: list[int] = []
    replace_file(tmp_path / "f", b"secret", 0o600, lambda fresh: sizes.append(os.fstat(fresh).st_size))
    assert sizes == [0]


def test_what_a_killed_process_left_is_in_no_ones_way(tmp_path: Path) -> None:
    (tmp_path / f".f.{os.getpid()}").write_text("half")
    replace_file(tmp_path / "f", b"whole")
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"whole"]
