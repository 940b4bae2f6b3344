"""Models of engines: the contract and the times of the real one, without its arithmetic."""
