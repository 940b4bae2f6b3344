"""What an engine computes on: the CPU, an NVIDIA GPU, or a GPU's code on the CPU for tests."""
