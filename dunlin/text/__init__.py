"""Text: tokenizers, incremental detokenising, chat templates, stop strings. Knows no request and no engine."""
