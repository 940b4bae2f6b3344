"""Campaigns and measurements: commands that start a cluster, do something to it, and print figures."""
