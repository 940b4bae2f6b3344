"""The limit of open files: raised to what is needed, never above what is allowed, never lowered."""

import resource

import pytest

from services.dispatcher.doors.http.open_files import RESERVED_DESCRIPTORS, raise_open_file_limit, soft_limit_for

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "needed", "expected"),
    [
        (1024, 4096, 3000, 3000),
        (1024, 2048, 3000, 2048),
        (1024, NO_LIMIT, 3000, 3000),
        (4096, 4096, 3000, 4096),
        (NO_LIMIT, NO_LIMIT, 3000, NO_LIMIT),
    ],
)
def test_the_soft_limit_to_have(soft: int, hard: int, needed: int, expected: int) -> None:
    assert soft_limit_for(soft, hard, needed) == expected


def test_fewer_connections_where_the_hard_limit_is_low(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: set_to.append(limits))
    assert raise_open_file_limit(100) == 100
    assert raise_open_file_limit(4096) == 1024 - RESERVED_DESCRIPTORS
    assert set_to == [(100 + RESERVED_DESCRIPTORS, 1024), (1024, 1024)]
