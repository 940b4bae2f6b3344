"""What can go wrong with etcd, as the callers tell it apart."""


class EtcdError(Exception):
    """etcd refused a call; the text is etcd's own."""


class EtcdUnavailable(EtcdError):
    """No endpoint answered in time, or etcd has no leader. A write that was on its way may have happened or not."""


class LeaseLost(EtcdError):
    """The lease does not exist any more; its keys are gone."""


class TokenRefused(EtcdError):
    """etcd does not know whose call it was; it has carried nothing out."""


class Compacted(EtcdError):
    """The revision asked for is older than etcd's history."""


class EtcdStartError(EtcdError):
    """The embedded etcd did not start: the binary is missing, a port is in use, or it exited."""
