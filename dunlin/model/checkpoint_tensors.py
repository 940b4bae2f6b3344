"""The faults of a checkpoint's tensors, by the headers of its files: the loader's own check.

Loads no torch and reads no tensor, so that `dunlin model show` and `dunlin up` can ask before an engine is started.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from dunlin.model.checkpoint_headers import TensorEntry, checkpoint_files, entries_of, find_entry, open_file
from dunlin.model.config import ModelConfig
from dunlin.model.errors import ModelError
from dunlin.model.weight_layout import layer_blocks, outer_blocks, part_shapes


def read_headers(directory: Path) -> tuple[dict[str, TensorEntry], list[ModelError]]:
    """The tensors of all files that can be read, and the faults of the others."""
    files, faults = checkpoint_files(directory)
    entries: dict[str, TensorEntry] = {}
    for path in files:
        try:
            with open_file(path, "np") as file:
                entries.update(entries_of(path, file))
        except ModelError as error:
            faults.append(error)
    return entries, faults


def tensor_faults(entries: Mapping[str, TensorEntry], config: ModelConfig, directory: Path) -> Iterator[ModelError]:
    """Every tensor that `config` asks for and the checkpoint lacks, or has in another shape or an unknown dtype; and
    every bias that it does not ask for: the text would be another model's.
    """
    remedy = "use the config.json that belongs to these weights"
    biases = {name for name in entries if name.endswith(".bias")}
    for name, shape in wanted_tensors(config):
        biases.discard(name)
        try:
            entry = find_entry(entries, name, directory)
        except ModelError as error:
            yield error
            continue
        if entry.shape != shape:
            what = f"tensor `{name}` has shape {entry.shape}, config.json implies {shape}"
            yield ModelError(entry.path, what, remedy)
    for name in sorted(biases):
        yield ModelError(entries[name].path, f"tensor `{name}` is a bias that config.json does not ask for", remedy)


def wanted_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor that the decoder reads."""
    for block in outer_blocks(config):
        yield from part_shapes(block)
    for layer in range(config.layers):
        for block in layer_blocks(config, layer):
            yield from part_shapes(block)
