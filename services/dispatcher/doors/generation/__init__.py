"""A generation request independent of protocols: prompt, settings, idempotency key, output text."""
