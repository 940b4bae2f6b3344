"""Authentication: from a call's Authorization header to its tenant. Knows no protocol, no file and no quota."""

from dataclasses import replace

from dunlin.auth.tenants import KEY_PREFIX, NO_OBJECTIVES, RequestObjectives, Tenant, hash_key
from dunlin.messages.door import Quotas, RejectionCode
from dunlin.messages.types import RequestClass
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.generation.settings import RequestSettings

SCHEME = "bearer"
MAX_KEY_CHARACTERS = 512


class Authenticator:
    """Owns the tenants by the hashes of their keys. Before the first `set_tenants` no keys are required."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] | None = None
        self._weights: dict[str, int] = {}
        self._classes: dict[str, RequestClass] = {}
        self._objectives: dict[str, RequestObjectives] = {}

    def set_tenants(self, tenants: tuple[Tenant, ...]) -> Quotas:
        """Replace all tenants; their quotas, for the core."""
        self._tenants = {digest: tenant for tenant in tenants for digest in tenant.keys}
        self._weights = {tenant.name: tenant.quota.weight for tenant in tenants}
        self._classes = {one.name: one.request_class for one in tenants if one.request_class is not None}
        self._objectives = {one.name: one.objectives for one in tenants if one.objectives != NO_OBJECTIVES}
        return Quotas(tuple(tenant.quota for tenant in tenants))

    def knows(self, tenant: str) -> bool:
        """Whether the file of tenants has a tenant of this name."""
        return tenant in self._weights

    def weight_of(self, tenant: str) -> int:
        """The weight of a tenant; 1 if the file has none of this name."""
        return self._weights.get(tenant, 1)

    def authenticate(self, authorization: str | None) -> str | None:
        """The tenant whose key the call presents; None: no keys are required.

        Raises:
            DoorError: no key, an unknown one, or a tenant that is disabled.
        """
        if self._tenants is None:
            return None
        # Looked up by its hash: the time that a lookup takes reveals nothing about other keys.
        tenant = self._tenants.get(hash_key(_key(authorization)))
        if tenant is None:
            raise DoorError(RejectionCode.UNAUTHENTICATED, "the API key is not known here")
        if tenant.disabled:
            raise DoorError(RejectionCode.FORBIDDEN, f"tenant {tenant.name!r} is disabled")
        return tenant.name

    def settings_of(self, settings: RequestSettings, tenant: str | None) -> RequestSettings:
        """The settings with `tenant`, its class, and its objectives where the request has none of its own; unchanged if
        it is None (no keys are required).

        Raises:
            DoorError: the request names another tenant.
        """
        if tenant is None:
            return settings
        if settings.tenant not in ("", tenant):
            raise DoorError(RejectionCode.FORBIDDEN, f"the API key is of tenant {tenant!r}, not of {settings.tenant!r}")
        request_class = self._classes.get(tenant, settings.request_class)
        objectives = self._objectives.get(tenant, NO_OBJECTIVES)
        return replace(
            settings,
            tenant=tenant,
            request_class=request_class,
            ttft_objective_s=_own_or(settings.ttft_objective_s, objectives.ttft_s),
            tpot_objective_s=_own_or(settings.tpot_objective_s, objectives.tpot_s),
        )


def _own_or(own_s: float | None, default_s: float | None) -> float | None:
    return default_s if own_s is None else own_s


def _key(authorization: str | None) -> str:
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != SCHEME or not key.strip() or len(key) > MAX_KEY_CHARACTERS:
        raise DoorError(RejectionCode.UNAUTHENTICATED, f"an API key is needed: Authorization: Bearer {KEY_PREFIX}…")
    return key.strip()
