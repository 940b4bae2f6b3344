"""Random clusters, loads and faults from seeds, with every invariant checked."""
