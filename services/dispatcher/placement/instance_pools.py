"""Which instances a request must leave to requests of other lengths. Decides nothing else."""

from dunlin.effects import Address
from dunlin.policies.by_length import long_instances
from services.dispatcher.config import PlacementConfig
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.requests.request import Request


class InstancePools:
    """Splits the instances that serve into those for long prompts and those for all others. `is_used`: it does."""

    def __init__(self, fleet: FleetState, config: PlacementConfig) -> None:
        self.is_used = config.pool_policy == "by_length" and config.long_tokens > 0
        self._fleet = fleet
        self._long_tokens = config.long_tokens
        self._share = config.long_share

    def is_long(self, request: Request) -> bool:
        """Whether the request has the instances for long prompts."""
        return self.is_used and request.prompt_tokens > self._long_tokens

    def excluded(self, request: Request) -> list[Address]:
        """The instances that it may not go to: those that could not hold it, and those of the other pool."""
        if not self.is_used:
            return request.excluded_instances
        serving, is_long = self._fleet.serving, self.is_long(request)
        reserved = long_instances(serving, self._share)
        if not reserved:
            return request.excluded_instances
        return [*request.excluded_instances, *(each for each in serving if (each in reserved) != is_long)]
