"""From the bytes of a request to tokens and settings; large requests in helper processes."""
