"""The leader's side of an elastic group."""
