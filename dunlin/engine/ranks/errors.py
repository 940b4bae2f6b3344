"""How ranks fail each other. Loads no torch."""


class RankGone(Exception):
    """Another rank has ended: nothing that is computed together can go on."""
