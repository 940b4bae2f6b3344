"""A LoRA adapter on disk, beside the model that it is for: its modules, its faults, and the digest that names it.

Reads headers of safetensors and the bytes that are hashed; loads no torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from dunlin.model.checkpoint_headers import TensorEntry, entries_of, find_entry, open_file
from dunlin.model.config import ModelConfig
from dunlin.model.errors import ModelError
from dunlin.model.lora.config import CONFIG_FILE, MOST_RANK, REMEDY, LoraConfig, read_lora_config
from dunlin.model.weight_layout import layer_blocks, part_shapes

WEIGHTS_FILE = "adapter_model.safetensors"
ADAPTED_BLOCKS = ("qkv", "out", "gate_up", "down")
"""The blocks of a layer whose products adapters may change: not those of experts, nor norms."""
_PREFIX, _DOWN, _UP = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class AdaptedModule:
    """To the module's weight `[rows, inputs]` is added `scale` times the product of `up` and `down`, which name tensors
    `[rows, rank]` and `[rank, inputs]`.
    """

    rank: int
    scale: float
    down: str
    up: str


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """An adapter that can be served. `modules` by name, as `model.layers.0.self_attn.q_proj`; `digest` names what KV
    depends on besides the model: 32 hex digits, others once one of its two files is.
    """

    directory: Path
    digest: str
    modules: Mapping[str, AdaptedModule]
    parameters: int

    @property
    def file(self) -> Path:
        """Where its tensors lie."""
        return self.directory / WEIGHTS_FILE

    @property
    def most_rank(self) -> int:
        """The greatest of its modules."""
        return max(module.rank for module in self.modules.values())


def load_adapter(directory: Path, config: ModelConfig) -> LoraAdapter:
    """The adapter in `directory`, for a model of that configuration.

    :raises ModelError: it cannot be served with that model.
    """
    adapter, faults = examine_adapter(directory, config)
    if adapter is None:
        raise faults[0]
    return adapter


def examine_adapter(directory: Path, config: ModelConfig) -> tuple[LoraAdapter | None, list[ModelError]]:
    """Like `load_adapter`, with all that is wrong; the adapter only where nothing is."""
    lora, faults = read_lora_config(directory)
    try:
        entries = _entries(directory)
    except ModelError as error:
        return None, [*faults, error]
    if lora is None:
        return None, faults
    wanted = dict(_wanted(lora, config))
    faults += _tensor_faults(directory, entries, wanted)
    if faults:
        return None, faults
    modules = {name: module for name, (module, _) in wanted.items()}
    count = sum(module.rank * sum(shape) for module, shape in wanted.values())
    return LoraAdapter(directory, _digest(directory), modules, count), []


def _entries(directory: Path) -> dict[str, TensorEntry]:
    path = directory / WEIGHTS_FILE
    if not path.is_file():
        old = (directory / "adapter_model.bin").is_file()
        what = "holds weights in a pickle, which dunlin does not read" if old else f"holds no {WEIGHTS_FILE}"
        raise ModelError(directory, what, "write the adapter again (`save_pretrained` of PEFT)")
    with open_file(path, "np") as file:
        return entries_of(path, file)


_Wanted = tuple[AdaptedModule, tuple[int, ...]]
"""A module, and (rows, inputs) of its weight."""


def _wanted(lora: LoraConfig, config: ModelConfig) -> Iterator[tuple[str, _Wanted]]:
    """The modules that the configuration asks for, of those that can be adapted."""
    for layer in range(config.layers):
        for block in layer_blocks(config, layer):
            for tensor, shape in part_shapes(block) if block.name in ADAPTED_BLOCKS else ():
                name = tensor.removesuffix(".weight")
                if lora.selects(name, layer):
                    names = f"{_PREFIX}{name}{_DOWN}", f"{_PREFIX}{name}{_UP}"
                    yield name, (AdaptedModule(lora.rank_of(name), lora.scale_of(name), *names), shape)


def _tensor_faults(
    directory: Path, entries: Mapping[str, TensorEntry], wanted: Mapping[str, _Wanted]
) -> Iterator[ModelError]:
    path, read = directory / WEIGHTS_FILE, set()
    for name, (module, (rows, inputs)) in wanted.items():
        if module.rank > MOST_RANK:
            yield ModelError(path, f"`{name}` has rank {module.rank}", f"dunlin serves ranks up to {MOST_RANK}")
        for tensor, shape in ((module.down, (module.rank, inputs)), (module.up, (rows, module.rank))):
            read.add(tensor)
            try:
                entry = find_entry(entries, tensor, directory)
            except ModelError as error:
                yield error
                continue
            if entry.shape != shape:
                what = f"tensor `{tensor}` has shape {entry.shape}, {CONFIG_FILE} and the model imply {shape}"
                yield ModelError(path, what, "use the adapter with the model that it was made for")
    for tensor in sorted(entries.keys() - read):
        what = f"tensor `{tensor}` is none of a linear layer of attention or MLP that {CONFIG_FILE} adapts"
        yield ModelError(path, what, REMEDY)
    if not wanted:
        yield ModelError(directory / CONFIG_FILE, "`target_modules` names no module that dunlin adapts", REMEDY)


def _digest(directory: Path) -> str:
    """:raises ModelError: a file cannot be read."""
    made = blake2b(digest_size=16, person=b"dunlin-lora")
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        path = directory / name
        try:
            made.update(path.stat().st_size.to_bytes(8, "little"))
            with path.open("rb") as file:
                while piece := file.read(_PIECE_BYTES):
                    made.update(piece)
        except OSError as error:
            raise ModelError(path, f"cannot be read ({error.strerror or error})", "fetch it again") from None
    return made.hexdigest()
