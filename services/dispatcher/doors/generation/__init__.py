"""One request as both doors see it: prompt, settings, idempotency key, output text."""
