"""The engine as the core sees it: its answers, its end and recovery, its watchdog."""
