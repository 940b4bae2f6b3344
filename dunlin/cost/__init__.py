"""Cost models of engines and processes: shapes, predictions, stored profiles."""
