"""The vocabulary: frozen, slotted dataclasses, one module per conversation. Pure: knows no transport, no policy."""
