"""A cluster on a GPU, as its clients see it: texts beside the CPU's, rates, and chat beside other work."""
