"""Which sequences run, what a step holds, who is preempted, what a step's answer means."""
