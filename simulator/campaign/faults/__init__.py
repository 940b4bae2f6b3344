"""The faults of a campaign, by what they strike."""
