"""OpenAI's request and reply formats: fields, checks, schemas, usage."""
