"""Who asks: from the Authorization of a call to the tenant that it counts for. Knows no protocol, no file, no quota."""

from dataclasses import replace

from dunlin.messages.door import Quotas, Rejection
from dunlin.tenants import KEY_PREFIX, Tenant, hash_of
from services.dispatcher.refusals import DoorError
from services.dispatcher.settings import Settings

SCHEME = "bearer"
MOST_CHARACTERS = 512


class Callers:
    """Owns the tenants by the hashes of their keys. Before the first `take` everybody may come, as nobody."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] | None = None
        self._names: frozenset[str] = frozenset()

    def take(self, tenants: tuple[Tenant, ...]) -> Quotas:
        """From now on these; what the core must know of them."""
        self._tenants = {digest: tenant for tenant in tenants for digest in tenant.keys}
        self._names = frozenset(tenant.name for tenant in tenants)
        return Quotas(tuple(tenant.quota for tenant in tenants))

    def knows(self, tenant: str) -> bool:
        """Whether the file of tenants names it."""
        return tenant in self._names

    def tenant(self, authorization: str | None) -> str | None:
        """The tenant of this call; None: keys are not asked for.

        Raises:
            DoorError: no key, an unknown one, or a tenant that is disabled.
        """
        if self._tenants is None:
            return None
        # Looked up by its hash: how long that takes tells nothing about the keys that there are.
        tenant = self._tenants.get(hash_of(_key(authorization)))
        if tenant is None:
            raise DoorError(Rejection.UNAUTHENTICATED, "the API key is not known here")
        if tenant.disabled:
            raise DoorError(Rejection.FORBIDDEN, f"tenant {tenant.name!r} is disabled")
        return tenant.name


def as_tenant(settings: Settings, tenant: str | None) -> Settings:
    """The settings of a request that counts for `tenant`, None where keys are not asked for.

    Raises:
        DoorError: the request names another tenant.
    """
    if tenant is None:
        return settings
    if settings.tenant not in ("", tenant):
        raise DoorError(Rejection.FORBIDDEN, f"the API key is of tenant {tenant!r}, not of {settings.tenant!r}")
    return replace(settings, tenant=tenant)


def _key(authorization: str | None) -> str:
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != SCHEME or not key.strip() or len(key) > MOST_CHARACTERS:
        raise DoorError(Rejection.UNAUTHENTICATED, f"an API key is needed: Authorization: Bearer {KEY_PREFIX}…")
    return key.strip()
