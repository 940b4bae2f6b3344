"""What is to be sent and when: traces, arrival processes, lengths, prompts."""
