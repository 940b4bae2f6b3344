"""Finds the profile of this instance's engine, from which its core predicts the times of steps."""

import logging
from pathlib import Path

from dunlin.config.errors import ConfigError
from dunlin.cost import PROFILES_FILE
from dunlin.cost.models import StepTimes
from dunlin.cost.store import ProfileStore, StoreError
from services.instance.process_config import InstanceProcessConfig

_log = logging.getLogger(__name__)

NEEDS_PROFILE = ("slo_aware", "harvest", "on_arrival", "on_arrival_rows")
"""Policies that do less without a profile."""


def find_profile(config: InstanceProcessConfig, data_dir: Path) -> StepTimes | None:
    """The latest profile of the model in `instance.engine.profile`, or else in the data directory's store.

    None where the data directory's store has none; a policy that would use it is then named in the log.

    Raises:
        ConfigError: the store that the setting names cannot be read, or has no profile of the model.
    """
    path = Path(config.engine.profile) if config.engine.profile else data_dir / PROFILES_FILE
    try:
        if config.engine.profile and not path.is_file():
            raise StoreError(f"{path}: there is no such file")
        if path.is_file():
            with ProfileStore(path) as store:
                return store.timing(config.model)
    except StoreError as error:
        if config.engine.profile:
            raise ConfigError(f"instance.engine.profile: {error}") from error
    wanting = [name for name in (config.scheduler.policy, config.interrupts.policy) if name in NEEDS_PROFILE]
    if wanting:
        _log.warning(
            "%s: no profile of %s in %s, so steps are bounded by instance.scheduler.budget_tokens and none is "
            "interrupted: run `dunlin profile --model %s` once on this machine",
            *(" and ".join(wanting), config.model, path, config.model),
        )
    return None
