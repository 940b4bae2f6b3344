"""The campaign's plans against real processes: rounds, clients, faults, and the checks of what was recorded."""
