"""The HTTP endpoint: sockets, deadlines, middleware, responses."""
