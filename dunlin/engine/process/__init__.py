"""The engine's process: frames in and out, threads, warm-up, self-test."""
