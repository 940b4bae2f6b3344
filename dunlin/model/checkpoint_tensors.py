"""The faults of a checkpoint's tensors, by the headers of its files: the loader's own check.

Loads no torch and reads no weights, so that `dunlin model show` and `dunlin up` can ask before an engine is started.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from dunlin.model.checkpoint_headers import (
    TensorEntry,
    checkpoint_files,
    doubled_faults,
    entries_of,
    find_entry,
    is_same,
    is_zero,
    open_file,
)
from dunlin.model.config import ModelConfig
from dunlin.model.errors import ModelError
from dunlin.model.quantization.module_tensors import (
    WEIGHT,
    find_module_tensor,
    module_faults,
    scheme_at,
    unread_faults,
)
from dunlin.model.weight_layout import EMBEDDING, HEAD, layer_blocks, outer_blocks, part_shapes

_BIAS = ".bias"


def read_headers(directory: Path) -> tuple[dict[str, TensorEntry], list[ModelError]]:
    """The tensors of all files that can be read, and the faults of the others."""
    files, faults = checkpoint_files(directory)
    entries: dict[str, TensorEntry] = {}
    for path in files:
        try:
            with open_file(path, "np") as file:
                found = entries_of(path, file)
            faults += doubled_faults(entries, found)
            entries.update(found)
        except ModelError as error:
            faults.append(error)
    return entries, faults


def tensor_faults(entries: Mapping[str, TensorEntry], config: ModelConfig, directory: Path) -> Iterator[ModelError]:
    """Every tensor that `config` asks for and the checkpoint lacks, or has in another shape or an unknown dtype; every
    bias, every tensor of quantised weights, and an output matrix, that it does not ask for: the text would be another
    model's.
    """
    read: set[str] = set()
    modules: set[str] = set()
    for name, shape in wanted_tensors(config):
        read.add(name)
        scheme = scheme_at(entries, config.quantization, name, shape)
        if scheme is None:
            yield from _dense_faults(entries, name, shape, directory)
            continue
        module = name.removesuffix(WEIGHT)
        modules.add(module)
        read |= {found for each in scheme.tensors(*shape) if (found := find_module_tensor(entries, module, each))}
        yield from module_faults(entries, scheme, name, shape, directory)
    yield from unread_faults(entries, read, modules)
    yield from _bias_faults(entries, read, modules)
    yield from _head_faults(entries, config)


def _dense_faults(
    entries: Mapping[str, TensorEntry], name: str, shape: tuple[int, ...], directory: Path
) -> Iterator[ModelError]:
    try:
        entry = find_entry(entries, name, directory)
    except ModelError as error:
        yield error
        return
    if entry.shape != shape:
        what = f"tensor `{name}` has shape {entry.shape}, config.json implies {shape}"
        yield ModelError(entry.path, what, "use the config.json that belongs to these weights")


def _bias_faults(
    entries: Mapping[str, TensorEntry], read: AbstractSet[str], modules: AbstractSet[str]
) -> Iterator[ModelError]:
    """Old GPTQ files have a bias of zeros in every module: those change nothing."""
    remedy = "use the config.json that belongs to these weights"
    for name in sorted(entries):
        if name.endswith(_BIAS) and name not in read:
            if name.removesuffix(_BIAS) in modules and is_zero(entries[name], name):
                continue
            what = f"tensor `{name}` is a bias that config.json does not ask for"
            yield ModelError(entries[name].path, what, remedy)


def _head_faults(entries: Mapping[str, TensorEntry], config: ModelConfig) -> Iterator[ModelError]:
    """An output matrix beside an embedding that is to stand for it: transformers takes it if they differ."""
    head, embedding = entries.get(HEAD), entries.get(EMBEDDING)
    if config.tied and head is not None and embedding is not None and not is_same(head, HEAD, embedding, EMBEDDING):
        what = f"tensor `{HEAD}` differs from `{EMBEDDING}`, and config.json ties them"
        yield ModelError(head.path, what, "set `tie_word_embeddings` to false in config.json, or remove the tensor")


def wanted_tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor that the decoder reads."""
    for block in outer_blocks(config):
        yield from part_shapes(block)
    for layer in range(config.layers):
        for block in layer_blocks(config, layer):
            yield from part_shapes(block)
