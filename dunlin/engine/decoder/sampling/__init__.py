"""The choice of tokens from logits, on the host or on the device, by the same noise."""
