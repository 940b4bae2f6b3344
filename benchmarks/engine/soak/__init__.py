"""Random orders of every kind of the contract to two engine processes, for as long as one likes."""
