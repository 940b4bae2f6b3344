"""What happens to a dispatched request: attempts, completion, migrations, adoption, lifecycle events."""
