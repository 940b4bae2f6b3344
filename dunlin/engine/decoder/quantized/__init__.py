"""Dequantises the weights of checkpoints while they are loaded: one file for each way of storing them.

Each gives rows of `[rows, inputs]` in float32, as exact as the products of two numbers are; the loader
rounds them once to the engine's dtype.
"""
