"""Elastic groups at an instance: its part as a member, and the leader's."""
