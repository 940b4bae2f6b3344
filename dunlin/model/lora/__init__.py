"""LoRA adapters as they lie on disk: what PEFT writes, judged without torch."""
