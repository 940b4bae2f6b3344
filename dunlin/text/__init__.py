"""Text at the doors: tokens and back, chat templates, stop strings. Knows no request and no engine."""
