"""Grammars of generated text: compiled for a model's tokenizer, matched token by token. Loads no torch."""
