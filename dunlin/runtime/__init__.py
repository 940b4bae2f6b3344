"""Processes of dunlin: the live host of a core, arguments, children, memory."""
