"""Which instance gets a request: the fleet's state, ranking, prefix affinity."""
