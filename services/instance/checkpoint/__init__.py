"""KV in the host tier: checkpoints beside the steps, and regions claimed from earlier attempts."""
