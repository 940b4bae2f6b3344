"""The limit of open files: raised to what is needed, never above what is allowed, never lowered."""

import resource

import pytest

from services.dispatcher.descriptors import RESERVED, raised, room_for

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
    assert raised(soft, hard, needed) == expected


def test_fewer_connections_where_the_hard_limit_is_low(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: set_to.append(limits))
    assert room_for(100) == 100
    assert room_for(4096) == 1024 - RESERVED
    assert set_to == [(100 + RESERVED, 1024), (1024, 1024)]
