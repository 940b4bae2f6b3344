"""What benchmarks share: processes, sessions, load, reports."""
