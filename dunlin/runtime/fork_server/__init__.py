"""Python processes that start in milliseconds: forked from one that has imported what they need."""
