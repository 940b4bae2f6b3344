"""Real clients against a cluster."""
