"""One driver per client library, run in an environment of its own."""
