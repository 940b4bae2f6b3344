"""The public endpoints: gRPC and what both doors share; `http`, `openai`, `generation` and `preprocess` below."""
