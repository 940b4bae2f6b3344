"""What a manager knows of the times of prompts in groups: out of a store of profiles. Read once, at start."""

from collections.abc import Sequence
from pathlib import Path

from dunlin.config.errors import ConfigError
from dunlin.cost.group_times import DEGREES, START_DECODE_S, planning_times
from dunlin.cost.store import ProfileKey, ProfileStore, StoreError, stored_name
from dunlin.policies.loongserve.inputs import GroupTimes


def read_times(path: str, model: str) -> GroupTimes:
    """The times by the profile in the store, with equation 7 as the fleet measured it where it did. Of several the only
    one of `model`: a manager knows neither the instances' device nor their precision, so it does not choose.

    Raises:
        ConfigError: the store cannot be read, has no profile, or leaves open which is meant.
    """
    try:
        if not Path(path).is_file():
            raise StoreError(f"{path}: there is no such file")
        with ProfileStore(Path(path)) as store:
            key = _only(store.keys(), path, model)
            measured = store.strategies(key.model, key.device)
            return planning_times(store.timing_of(key), DEGREES, START_DECODE_S, measured=measured)
    except StoreError as error:
        raise ConfigError(f"manager.groups.profile: {error}") from error


def _only(keys: Sequence[ProfileKey], path: str, model: str) -> ProfileKey:
    if not keys:
        raise StoreError(f"{path}: no profile; `dunlin profile --out` makes one")
    of_model = [key for key in keys if key.model == stored_name(model)]
    found = keys if len(keys) == 1 else of_model
    if len(found) != 1:
        raise StoreError(
            f"{path}: {len(keys)} profiles, {len(of_model)} of them of {model} (cluster.model), and one is needed: "
            f"{'; '.join(map(str, keys))}; `dunlin profile --out` with the instances' flags makes a store of its own"
        )
    return found[0]
