"""The vocabulary: frozen, slotted dataclasses, one module per conversation. Pure: imports no transport and no policy."""
