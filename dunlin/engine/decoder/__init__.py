"""The decoder: weights, layers, sampling."""
