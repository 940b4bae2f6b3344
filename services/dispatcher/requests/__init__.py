"""What a dispatcher keeps of each request: the journal, its timers, fences of old attempts, finished answers."""
