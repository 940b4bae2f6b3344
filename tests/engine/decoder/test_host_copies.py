"""Several columns go to a device in one copy, and each is there as it was."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from dunlin.engine.decoder import host_copies
from dunlin.engine.decoder.host_copies import ALIGNED, all_to_device


def test_columns_of_any_length_go_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []

    def copy(values: Tensor, device: Any) -> Tensor:
        copied.append(len(values))
        return values.clone()

    monkeypatch.setattr(host_copies, "to_device", copy)
    columns = [torch.arange(at, at + count) for at, count in ((5, 17), (100, 1), (7, 0), (50, 32))]
    there = all_to_device(columns, cast(torch.device, SimpleNamespace(type="cuda")))
    assert [each.tolist() for each in there] == [each.tolist() for each in columns]
    assert copied == [2 * ALIGNED + ALIGNED + 0 + 2 * ALIGNED]
    assert all(each.data_ptr() % (8 * ALIGNED) == there[0].data_ptr() % (8 * ALIGNED) for each in (there[1], there[3]))


def test_on_the_host_they_are_the_very_columns() -> None:
    columns = [torch.arange(3), torch.arange(4)]
    there = all_to_device(columns, torch.device("cpu"))
    assert [each.data_ptr() for each in there] == [each.data_ptr() for each in columns]
