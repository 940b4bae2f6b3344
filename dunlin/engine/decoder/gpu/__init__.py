"""What a GPU does instead: recorded steps, kernels in Triton, products of its libraries."""
