"""Where an arena's slots lie in its memory file, whatever the layout."""

import os
from pathlib import Path

import torch

from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import load_model
from dunlin.engine.transfer.arena_slots import kv_file_runs, slab_of, slots_by_layer
from tests.engine.build import make_checkpoint


def test_the_file_has_each_layers_slots_where_the_runs_say(tmp_path: Path) -> None:
    fd = os.memfd_create("arena")
    chosen = numerics.fast_numerics()
    loaded = load_model(make_checkpoint(tmp_path), "float32", 3 << 20, chosen, fd, layers=(0, 2))
    slots = slots_by_layer(loaded.arena)
    assert (slots[0], slots[1], slots[2]) == (loaded.slots, 0, loaded.slots)
    slab = slab_of(loaded.arena, loaded.decoder.kv)
    assert (slab.slots, slab.layout) == (tuple(slots), loaded.arena.record.layout)
    runs = kv_file_runs(loaded.arena)
    assert runs[1] == []
    for layer in (0, 2):
        held = loaded.decoder.kv[layer][: slots[layer]]
        held.copy_(torch.randn(held.shape))
        found = b"".join(os.pread(fd, length, offset) for offset, length in runs[layer])
        assert found == held.numpy().tobytes()
