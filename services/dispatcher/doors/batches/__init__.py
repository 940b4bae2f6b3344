"""Batch jobs at work: their lines go through the gateway as requests of class BATCH."""
