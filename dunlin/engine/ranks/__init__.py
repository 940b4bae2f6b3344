"""The ranks of one engine: processes that compute each layer together, each with some of its heads. Loads no torch."""
