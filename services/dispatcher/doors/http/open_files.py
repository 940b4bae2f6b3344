"""The process's limit of open files: every connection takes one."""

import resource

RESERVED_DESCRIPTORS = 512
"""Descriptors for gRPC's connections, etcd, logs and the rest of the process."""


def raise_open_file_limit(connections: int) -> int:
    """Raise the soft limit of open files for so many connections; how many of them this process can have open.

    The usual soft limit, 1024, protects programs that use select(2), which this one does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = soft_limit_for(soft, hard, connections + RESERVED_DESCRIPTORS)
    if allowed != soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return (
        connections if allowed == resource.RLIM_INFINITY else max(1, min(connections, allowed - RESERVED_DESCRIPTORS))
    )


def soft_limit_for(soft: int, hard: int, needed: int) -> int:
    """The soft limit to set for `needed` files: at most the hard limit, and at least the present soft limit."""
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return soft
    return needed if hard == resource.RLIM_INFINITY else max(soft, min(needed, hard))
