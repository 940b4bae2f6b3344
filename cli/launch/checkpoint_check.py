"""Whether a checkpoint can be served: what its loaders will check, asked before anything is started.

Reads JSON files, headers and the tokenizer; reads no tensor and loads no torch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dunlin.model.checkpoint_headers import TensorEntry
from dunlin.model.checkpoint_tensors import read_headers, tensor_faults
from dunlin.model.config import ModelConfig, check_config
from dunlin.model.errors import ModelError
from dunlin.text.tokenizer import check_tokenizer_matches_model, load_chat_template, load_tokenizer

MOST_TENSOR_FAULTS = 1000
"""A config.json that names a million layers lacks as many tensors."""


@dataclass(frozen=True, slots=True)
class CheckpointFindings:
    """The tensors that a checkpoint has, its configuration where nothing is wrong with that, and every reason why it
    cannot be served.
    """

    entries: Mapping[str, TensorEntry]
    config: ModelConfig | None
    faults: tuple[ModelError, ...]


def examine_checkpoint(directory: Path) -> CheckpointFindings:
    """Look at a checkpoint; raises nothing for what is wrong with it."""
    config, faults = check_config(directory)
    if not directory.is_dir():
        return CheckpointFindings({}, None, tuple(faults))
    entries, unreadable = read_headers(directory)
    faults += [*unreadable, *_text_faults(directory, config)]
    if config is not None and not unreadable:  # what a lost file holds is not missing
        faults += islice(tensor_faults(entries, config, directory), MOST_TENSOR_FAULTS)
    return CheckpointFindings(entries, config, tuple(faults))


def _text_faults(directory: Path, config: ModelConfig | None) -> Iterator[ModelError]:
    try:
        tokenizer = load_tokenizer(directory)
        if config is not None:
            check_tokenizer_matches_model(tokenizer, config.vocab, directory)
    except ModelError as error:
        yield error
    try:
        load_chat_template(directory)
    except ModelError as error:
        yield error
