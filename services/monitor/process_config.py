"""Settings of a monitor's process beside those of its core: where traces go."""

from dataclasses import dataclass

from dunlin.config.fields import section, setting
from services.monitor.config import MonitorConfig


@dataclass(frozen=True, slots=True)
class TracingConfig:
    """Traces of requests. The simulator sends none."""

    otlp_url: str = setting(
        "",
        "A trace of each request goes to this OpenTelemetry collector, http(s)://HOST:4317; empty: to none.",
        why="there is no collector unless you run one",
    )


@dataclass(frozen=True, slots=True)
class MonitorProcessConfig(MonitorConfig):
    """All settings of a monitor."""

    tracing: TracingConfig = section(TracingConfig)
