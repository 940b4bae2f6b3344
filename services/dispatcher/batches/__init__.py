"""Batch jobs: their state, their lines, where they are kept. Knows no door and no request of the core."""
