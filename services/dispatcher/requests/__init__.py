"""What a dispatcher keeps of each request: its journal, its timers, its fences, finished answers."""
