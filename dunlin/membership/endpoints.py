"""How endpoints of etcd are written: the one place that reads `--etcd`.

Knows no gRPC, so that a command line may use it.
"""


def parse_endpoints(text: str) -> tuple[str, ...]:
    """`host:port,host:port` (also with `http://`) as a tuple. Raises ValueError naming the entry that is wrong."""
    endpoints = tuple(check_endpoint(entry.strip()) for entry in text.split(","))
    for endpoint in endpoints:
        if endpoints.count(endpoint) > 1:
            raise ValueError(f"etcd endpoint {endpoint} is given twice")
    return endpoints


def check_endpoint(text: str) -> str:
    """One endpoint as `host:port`. Raises ValueError saying what it should look like."""
    if text.startswith("https://"):
        raise ValueError(f"etcd endpoint {text!r}: write host:port; TLS is chosen by its own flags, not by the address")
    bare = text.removeprefix("http://").rstrip("/")
    host, _, port = bare.rpartition(":")
    if not _is_host(host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"etcd endpoint {text!r} is not host:port (example: 127.0.0.1:2379; several with commas)")
    return f"{host}:{int(port)}"


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host (an IPv6 address without its brackets) and port of a checked endpoint, as sockets want them."""
    host, _, port = endpoint.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_host(host: str) -> bool:
    if host.startswith("["):
        return host.endswith("]") and len(host) > 2
    return bool(host) and not any(letter in "/:[]@?# " for letter in host)
