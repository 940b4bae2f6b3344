"""What happens to a request: its attempts, completion, migration, adoption, joining readers, lifecycle events."""
