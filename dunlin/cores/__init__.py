"""What the cores of several services have in common: handlers, reports to monitors, kept answers."""
