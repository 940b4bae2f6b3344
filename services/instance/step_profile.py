"""Finds what is known of this instance's engine, from which its core predicts the times of steps: a profile, or what
its steps taught earlier processes.
"""

import logging
from pathlib import Path

import dunlin
from dunlin.config.errors import ConfigError
from dunlin.cost import PROFILES_FILE
from dunlin.cost.store import ProfileKey, ProfileStore, StoreError, engine_key
from dunlin.engine.device.names import computed_by, counted_threads
from services.instance.process_config import EngineConfig, InstanceProcessConfig
from services.instance.scheduling.step_forecast import needs_step_times
from services.instance.scheduling.step_times import KnownStepTimes

_log = logging.getLogger(__name__)
_REMEDY = "`dunlin profile` with this --model, --device, --dtype, --kv-dtype, --threads and --tp measures them at once"


def find_step_times(config: InstanceProcessConfig, data_dir: Path) -> KnownStepTimes:
    """The profile of such an engine (model, processor or GPU, threads, precision) in `instance.engine.profile`, or else
    in the data directory's store; without one what was learnt of such an engine, which lies there.

    None where there is neither; a policy that would use it is then named in the log. Profiles of other engines do not
    count: their times may be off by orders of magnitude.

    Raises:
        ConfigError: the store that the setting names cannot be read, or has no profile of such an engine.
    """
    key = step_times_key(config)
    if config.engine.profile:
        return _profile(key, Path(config.engine.profile))
    path = data_dir / PROFILES_FILE
    if path.is_file():
        try:
            with ProfileStore(path) as store:
                measured = store.keys()
                if key in measured:
                    return store.timing_of(key)
                learnt = store.learnt(key, dunlin.__version__)
        except StoreError as error:
            _log.warning("%s", error)
        else:
            if learnt is not None:
                return learnt
    wanting = needs_step_times(config)
    if wanting:
        _log.warning(
            "%s: no profile of %s in %s, so the times of steps are learnt from those that are served; until they are "
            "known, instance.scheduler.budget_tokens bounds steps and none is interrupted. %s",
            *(" and ".join(wanting), key, path, _REMEDY),
        )
    return None


def step_times_key(config: InstanceProcessConfig) -> ProfileKey:
    """Of which engines the step times of this one are true, measured or learnt."""
    return engine_times_key(config.engine, config.model, computed_by(config.engine.device))


def engine_times_key(engine: EngineConfig, model: str, processor: str) -> ProfileKey:
    """The same, of an engine that computes `model` on a processor, or GPU, which may be another machine's."""
    return engine_key(
        model,
        processor,
        counted_threads(engine.device, engine.threads),
        engine.precision,
        deterministic=engine.deterministic,
        ranks=engine.ranks,
    )


def _profile(key: ProfileKey, path: Path) -> KnownStepTimes:
    try:
        if not path.is_file():
            raise StoreError(f"{path}: there is no such file")
        with ProfileStore(path) as store:
            return store.timing_of(key)
    except StoreError as error:
        raise ConfigError(
            f"instance.engine.profile: {error}; {_REMEDY}, and without the setting they are learnt"
        ) from error
