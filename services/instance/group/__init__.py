"""Elastic groups: what an instance does as the leader of one, and as a member."""
