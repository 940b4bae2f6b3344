"""The models that measurements name: A (32 M parameters), B (254 M), and a tiny one for tests; random weights, bf16."""

from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape

A = CheckpointShape(8, 512, 8, 4, 64, 1408, 8192, dtype="bfloat16")
B = CheckpointShape(16, 1024, 16, 8, 64, 2816, 32768, dtype="bfloat16")
SHAPES = {"A": A, "B": B, "tiny": CheckpointShape(dtype="bfloat16")}
