"""What is imported for good leaves the collector as it was."""

import gc
from pathlib import Path

import pytest

from dunlin.runtime.frozen_import import import_frozen


def test_what_it_imports_is_out_of_the_collectors_sight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept_for_good.py").write_text(
        "import gc\nwas_enabled = gc.isenabled()\nlists = [[] for _ in range(999)]"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        module = import_frozen("kept_for_good")
        assert not module.was_enabled
        assert gc.isenabled()
        assert gc.get_freeze_count() > 9
    finally:
        gc.unfreeze()


def test_the_collector_works_on_where_there_is_no_such_module() -> None:
    with pytest.raises(ModuleNotFoundError):
        import_frozen("no_such_module")
    assert gc.isenabled()
