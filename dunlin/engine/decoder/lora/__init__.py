"""LoRA adapters in the engine: their matrices, and what they add to a layer's products."""
