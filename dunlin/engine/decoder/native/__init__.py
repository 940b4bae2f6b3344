"""Kernels in C++ for batches of few tokens."""
