"""What interactive sequences are to get, and when they did not."""
