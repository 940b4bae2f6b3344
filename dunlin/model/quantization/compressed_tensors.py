"""compressed-tensors: groups of modules, each with a scheme of its own, and a list of those that stay as they are."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dunlin.model.config_reader import ConfigReader
from dunlin.model.quantization.fp8 import read_block
from dunlin.model.quantization.options import UNQUANTISED, read_group_size, refuse_options
from dunlin.model.quantization.packed import PackedScheme
from dunlin.model.quantization.scaled import FP8, INT8, ScaledScheme
from dunlin.model.quantization.scheme import Quantization, WeightScheme

PACKED, PLAIN = "pack-quantized", ("int-quantized", "float-quantized", "naive-quantized")
LINEAR = "Linear"
_REGEX = "re:"
_BY_GROUP: tuple[object, ...] = ("group", "dynamic", True)
"""Of `actorder`: inputs were put into groups by their activations, and `weight_g_idx` says which."""
_IN_PLACE: tuple[object, ...] = (None, "weight", "static", False)
"""The order in which weights were rounded, of which nothing is left in the file."""


@dataclass(frozen=True, slots=True)
class NamedModules:
    """`target`, and each of `ignore`: a module's name, the class `Linear`, or `re:` and a pattern of a name's begin."""

    target: str
    ignore: tuple[str, ...]

    def match(self, module: str) -> bool:
        return _is_match(module, self.target) and not any(_is_match(module, each) for each in self.ignore)


def _is_match(module: str, target: str) -> bool:
    if target.startswith(_REGEX):
        return re.match(target.removeprefix(_REGEX), module) is not None
    return target in (module, LINEAR)


def read_compressed_tensors(reader: ConfigReader) -> Quantization:
    """The `quantization_config` of `quant_method` compressed-tensors; faults go to the reader.

    A module's own name goes before a pattern, and both before its class.
    """
    values = reader.values
    _refuse_transforms(reader)
    ignore = tuple(_names(reader, "ignore", values.get("ignore")))
    groups = values.get("config_groups")
    if not isinstance(groups, dict) or not groups or not all(isinstance(group, dict) for group in groups.values()):
        reader.fault("`config_groups` of compressed-tensors must be an object of objects", UNQUANTISED)
        groups = {}
    found: list[tuple[NamedModules, WeightScheme]] = []
    for group in groups.values():
        scheme = _scheme(reader, group)
        found += [(NamedModules(name, ignore), scheme) for name in _names(reader, "targets", group.get("targets"))]
    found.sort(key=lambda pair: _rank(pair[0].target))
    return Quantization("compressed-tensors", tuple(found))


def _rank(target: str) -> int:
    return 2 if target == LINEAR else 1 if target.startswith(_REGEX) else 0


def _refuse_transforms(reader: ConfigReader) -> None:
    """What changes the computation besides the weights' format."""
    sparsity = reader.values.get("sparsity_config") or {}
    form = sparsity.get("format", "dense") if isinstance(sparsity, dict) else sparsity
    refuse_options(reader, "sparsity_config.format", form, {"dense"})
    transforms = reader.values.get("transform_config") or {}
    if not isinstance(transforms, dict) or transforms.get("config_groups"):
        reader.fault("`transform_config` of compressed-tensors is not supported", UNQUANTISED)


def _names(reader: ConfigReader, key: str, value: object) -> Iterator[str]:
    listed = [] if value is None else value
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        reader.fault(f"`{key}` of compressed-tensors must be a list of names, not {value!r}")
        return
    for name in listed:
        try:
            re.compile(name.removeprefix(_REGEX) if name.startswith(_REGEX) else "")
        except re.error as error:
            reader.fault(f"`{key}` of compressed-tensors has a broken pattern {name!r} ({error})")
        else:
            yield name


def _scheme(reader: ConfigReader, group: Mapping[str, Any]) -> WeightScheme:
    """The scheme of one of `config_groups`; any other where that is not read: the fault counts."""
    known = len(reader.faults)
    weights = group.get("weights") or {}
    given = weights if isinstance(weights, dict) else {}
    own = ConfigReader(reader.path, {"quant_method": "compressed-tensors", **given}, reader.faults)
    form = group.get("format") or reader.values.get("format", "dense")
    refuse_options(own, "format", form, {PACKED, *PLAIN})
    refuse_options(own, "type", given.get("type", "int"), {"int"} if form == PACKED else {"int", "float"})
    refuse_options(own, "dynamic", given.get("dynamic") or False, {False})
    refuse_options(own, "num_bits", given.get("num_bits", 8), {4, 8} if form == PACKED else {8})
    if len(reader.faults) > known:
        return ScaledScheme(INT8, 1, 0)
    return _packed(own) if form == PACKED else _plain(own)


def _packed(reader: ConfigReader) -> WeightScheme:
    strategy = _strategy(reader, {"group", "channel"})
    group = read_group_size(reader, "group_size") if strategy == "group" else 0
    order = reader.values.get("actorder")
    refuse_options(reader, "actorder", order, {*_BY_GROUP, *_IN_PLACE})
    return PackedScheme(reader.values.get("num_bits", 8), group, not reader.flag("symmetric", True), order in _BY_GROUP)


def _plain(reader: ConfigReader) -> WeightScheme:
    dtype = FP8 if reader.values.get("type") == "float" else INT8
    strategy = _strategy(reader, {"tensor", "channel", "group", "block"})
    refuse_options(reader, "actorder", reader.values.get("actorder"), {*_IN_PLACE})
    if strategy == "block":
        rows, inputs = read_block(reader, "block_structure", reader.values.get("block_structure"))
        return ScaledScheme(dtype, rows, inputs)
    group = read_group_size(reader, "group_size") if strategy == "group" else 0
    return ScaledScheme(dtype, 0 if strategy == "tensor" else 1, group)


def _strategy(reader: ConfigReader, known: set[object]) -> object:
    """As written, or what a group size implies."""
    values = reader.values
    size = values.get("group_size")
    implied = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = values.get("strategy") or implied
    refuse_options(reader, "strategy", strategy, known)
    return strategy
