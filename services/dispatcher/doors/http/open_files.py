"""Room for open files: every connection takes one, and a process may have only so many."""

import resource

RESERVED_DESCRIPTORS = 512
"""For gRPC's connections, etcd, logs and the rest of the process."""


def raise_open_file_limit(connections: int) -> int:
    """How many of `connections` this process can have open. Raises its soft limit of open files where that is too low.

    The usual soft limit, 1024, is there for programs that use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = soft_limit_for(soft, hard, connections + RESERVED_DESCRIPTORS)
    if allowed != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return (
        connections if allowed == resource.RLIM_INFINITY else max(1, min(connections, allowed - RESERVED_DESCRIPTORS))
    )


def soft_limit_for(soft: int, hard: int, needed: int) -> int:
    """The soft limit to have: what is needed, at most the hard limit, and not below what it is."""
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return soft
    return needed if hard == resource.RLIM_INFINITY else max(soft, min(needed, hard))
