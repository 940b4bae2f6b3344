"""What a manager knows of the times of prompts in groups: out of a store of profiles. Read once, at start."""

from pathlib import Path

from dunlin.config.errors import ConfigError
from dunlin.cost.group_times import DEGREES, START_DECODE_S, planning_times
from dunlin.cost.store import ProfileStore, StoreError
from dunlin.policies.loongserve.inputs import GroupTimes


def read_times(path: str) -> GroupTimes:
    """The times by the latest profile in the store, with equation 7 as the fleet measured it where it did.

    Raises:
        ConfigError: the store cannot be read, or has no profile.
    """
    try:
        if not Path(path).is_file():
            raise StoreError(f"{path}: there is no such file")
        with ProfileStore(Path(path)) as store:
            keys = store.keys()
            if not keys:
                raise StoreError(f"{path}: no profile; `dunlin profile --out` makes one")
            measured = store.strategies(keys[0].model, keys[0].device)
            return planning_times(store.timing_of(keys[0]), DEGREES, START_DECODE_S, measured=measured)
    except StoreError as error:
        raise ConfigError(f"manager.groups.profile: {error}") from error
