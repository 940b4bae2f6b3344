"""The public doors: cost per token, pauses, hostile bodies."""
