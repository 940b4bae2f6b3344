"""One conversation between two processes: dialling, accepting, probing."""
