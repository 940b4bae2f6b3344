"""A modelled engine's steps: the queue, the running step, and rows that leave it and come back."""
