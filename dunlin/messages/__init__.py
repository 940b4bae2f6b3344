"""Messages: frozen, slotted dataclasses, one module per conversation; `declare` says how a message is declared.

Pure: knows no transport, no policy.
"""
