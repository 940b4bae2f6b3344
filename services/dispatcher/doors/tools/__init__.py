"""Tool calls: what a body says of them, the formats in which models write them, and their parsing as text comes."""
