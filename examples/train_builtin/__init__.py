"""How the model `builtin:chat` was made: `python -m examples.train_builtin --wordnet DIR --out DIR`."""
