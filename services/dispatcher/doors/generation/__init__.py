"""A generate request in dunlin's own words: prompt, settings, idempotency key, output text."""
