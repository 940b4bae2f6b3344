"""The engine on a GPU: is it right there, and how fast. `benchmarks/gpu/run.sh`; no cluster, nothing is fetched."""
