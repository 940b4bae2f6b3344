"""Which sequences run, which are preempted, what a step holds, what the answer to a step means."""
