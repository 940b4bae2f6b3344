"""A client's credentials: certificates and an API key, as given or from the environment."""

import os
from dataclasses import dataclass
from pathlib import Path

from dunlin.client.errors import DunlinError
from dunlin.wire.errors import StartError
from dunlin.wire.security import TlsIdentity

TLS_DIR, API_KEY = "DUNLIN_TLS_DIR", "DUNLIN_API_KEY"

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of one client. `security` None: plaintext. `metadata` is sent to dispatchers only."""

    security: TlsIdentity | None
    metadata: Metadata


ANONYMOUS = Credentials(None, ())


def load_credentials(tls_dir: str | Path | None, api_key: str | None) -> Credentials:
    """Credentials from the arguments; None: from `DUNLIN_TLS_DIR` and `DUNLIN_API_KEY`; empty: none.

    Raises:
        DunlinError: the certificates cannot be used, or the key cannot be a key.
    """
    directory = os.environ.get(TLS_DIR, "") if tls_dir is None else str(tls_dir)
    key = os.environ.get(API_KEY, "") if api_key is None else api_key
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise DunlinError("the API key holds characters that no key has (a line break, perhaps)")
    try:
        security = TlsIdentity.load(Path(directory)) if directory else None
    except StartError as error:
        raise DunlinError(str(error)) from error
    return Credentials(security, (("authorization", f"Bearer {key}"),) if key else ())
