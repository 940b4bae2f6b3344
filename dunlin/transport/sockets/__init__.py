"""Regions carried by sockets."""
