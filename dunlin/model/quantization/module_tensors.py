"""The tensors of quantised modules, by a checkpoint's headers: which modules are quantised, and what is wrong."""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

from dunlin.model.checkpoint_headers import DTYPES, TensorEntry
from dunlin.model.errors import ModelError
from dunlin.model.quantization.scheme import ModuleTensor, Quantization, WeightScheme

WEIGHT = ".weight"
UNREAD = (
    *("input_scale", "output_scale", "input_zero_point", "output_zero_point", "activation_scale", "input_scale_ub"),
    *("k_scale", "v_scale", "q_scale", "k_zero_point", "v_zero_point"),
)
"""Scales of activations and of KV, which are not quantised here."""
COMPANIONS = frozenset(
    (
        *("qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_shape", "weight_g_idx"),
        *("weight_scale", "weight_scale_inv", "weight_zero_point", "weight_global_scale", "perm", "SCB", "absmax"),
    )
)
"""Last parts of names that tensors of quantised modules have."""
REMEDY = "use the config.json that belongs to these weights, or the unquantised checkpoint"


def scheme_at(
    entries: Mapping[str, TensorEntry], quantization: Quantization | None, name: str, shape: tuple[int, ...]
) -> WeightScheme | None:
    """How the weights `name` are stored if they are quantised; None: as plain numbers, if at all."""
    entry = entries.get(name)
    if quantization is None or len(shape) != 2 or (entry is not None and entry.dtype in DTYPES):
        return None
    return quantization.scheme_of(name.removesuffix(WEIGHT))


def find_module_tensor(entries: Mapping[str, TensorEntry], module: str, wanted: ModuleTensor) -> str | None:
    """The name of the tensor that `wanted` describes; None: the checkpoint has none."""
    names = (f"{module}.{suffix}" for suffix in (wanted.suffix, wanted.alias) if suffix)
    return next((name for name in names if name in entries), None)


def module_faults(
    entries: Mapping[str, TensorEntry], scheme: WeightScheme, name: str, shape: tuple[int, ...], directory: Path
) -> Iterator[ModelError]:
    """What is wrong with the quantised weights `name`, which are `shape` once they are dequantised."""
    module, (rows, inputs) = name.removesuffix(WEIGHT), shape
    misfit = scheme.misfit(rows, inputs)
    if misfit:
        yield ModelError(directory, f"`{module}` is not stored as {scheme}: {misfit}", REMEDY)
        return
    for wanted in scheme.tensors(rows, inputs):
        found = find_module_tensor(entries, module, wanted)
        if found is not None:
            yield from _tensor_faults(entries[found], found, wanted)
        elif not wanted.optional:
            what = f"tensor `{module}.{wanted.suffix}` is missing ({scheme})"
            yield ModelError(directory, what, "use a complete checkpoint that fits its config.json")


def _tensor_faults(entry: TensorEntry, name: str, wanted: ModuleTensor) -> Iterator[ModelError]:
    if entry.dtype not in wanted.dtypes:
        what = f"tensor `{name}` has dtype {entry.dtype}, not {' or '.join(wanted.dtypes)}"
        yield ModelError(entry.path, what, REMEDY)
    if entry.shape not in wanted.shapes:
        shapes = " or ".join(map(str, wanted.shapes))
        yield ModelError(entry.path, f"tensor `{name}` has shape {entry.shape}, config.json implies {shapes}", REMEDY)


def unread_faults(
    entries: Mapping[str, TensorEntry], read: AbstractSet[str], modules: AbstractSet[str]
) -> Iterator[ModelError]:
    """Tensors of quantised weights that no scheme asks for, of the quantised `modules` or of others: what they are for
    would not be computed.
    """
    for name in sorted(set(entries) - read):
        module, _, last = name.rpartition(".")
        if last in COMPANIONS or (module in modules and last not in UNREAD and last != "bias"):
            what = f"tensor `{name}` belongs to quantised weights, and config.json does not say how"
            yield ModelError(entries[name].path, what, REMEDY)
