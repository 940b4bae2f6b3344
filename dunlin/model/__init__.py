"""What is known of a model without an engine: configuration, checkpoint headers, weight layout."""
