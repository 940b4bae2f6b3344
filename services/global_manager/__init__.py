"""The global manager: forms groups, drains and rebalances instances, while etcd has elected it."""
