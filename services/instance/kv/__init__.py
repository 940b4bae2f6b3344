"""KV memory of an instance: token slots, the KV cache, the prefix cache, the host cache's client."""
