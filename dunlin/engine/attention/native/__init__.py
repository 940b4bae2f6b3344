"""Kernels in C++. `hatch_build.py` builds them where there is a compiler; `library` loads them."""
