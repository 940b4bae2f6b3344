"""Finds what is known of this instance's engine, from which its core predicts the times of steps: a profile, or what
its steps taught earlier processes.
"""

import logging
from pathlib import Path

import dunlin
from dunlin.config.errors import ConfigError
from dunlin.cost import PROFILES_FILE
from dunlin.cost.store import ProfileKey, ProfileStore, StoreError, engine_key, stored_name
from dunlin.engine.device.names import computed_by
from services.instance.process_config import InstanceProcessConfig
from services.instance.scheduling.step_forecast import needs_step_times
from services.instance.scheduling.step_times import KnownStepTimes

_log = logging.getLogger(__name__)


def find_step_times(config: InstanceProcessConfig, data_dir: Path) -> KnownStepTimes:
    """The latest profile of the model in `instance.engine.profile`, or else in the data directory's store; without one
    what was learnt of such an engine, which lies there.

    None where there is neither; a policy that would use it is then named in the log.

    Raises:
        ConfigError: the store that the setting names cannot be read, or has no profile of the model.
    """
    if config.engine.profile:
        return _profile(config, Path(config.engine.profile))
    path = data_dir / PROFILES_FILE
    if path.is_file():
        try:
            with ProfileStore(path) as store:
                if stored_name(config.model) in store.models():
                    return store.timing(config.model)
                learnt = store.learnt(learnt_key(config), dunlin.__version__)
        except StoreError as error:
            _log.warning("%s", error)
        else:
            if learnt is not None:
                return learnt
    wanting = needs_step_times(config)
    if wanting:
        _log.warning(
            "%s: no profile of %s in %s, so the times of steps are learnt from those that are served; until they are "
            "known, instance.scheduler.budget_tokens bounds steps and none is interrupted. `dunlin profile --model %s` "
            "measures them at once",
            *(" and ".join(wanting), config.model, path, config.model),
        )
    return None


def learnt_key(config: InstanceProcessConfig) -> ProfileKey:
    """Of which engines what was learnt of this one is true."""
    engine = config.engine
    processor = computed_by(engine.device)
    return engine_key(
        config.model,
        processor,
        engine.threads,
        engine.precision,
        deterministic=engine.deterministic,
        ranks=engine.ranks,
    )


def _profile(config: InstanceProcessConfig, path: Path) -> KnownStepTimes:
    try:
        if not path.is_file():
            raise StoreError(f"{path}: there is no such file")
        with ProfileStore(path) as store:
            return store.timing(config.model)
    except StoreError as error:
        raise ConfigError(f"instance.engine.profile: {error}") from error
