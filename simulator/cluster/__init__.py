"""A whole cluster in virtual time: the real cores, their processes, network, etcd and engines."""
