"""The five services. Each has a core that decides, and servers that do I/O; they meet on the wire only."""
