"""What dials and accepts plain sockets is given for TLS. Knows no certificate."""

import ssl
from collections.abc import Callable

MakeContext = Callable[[], ssl.SSLContext]
"""The TLS context for a connection that begins now: certificates are renewed while the process runs."""
