"""The public endpoints. gRPC and what both doors share lie here; below:

http          sockets, deadlines, middleware, responses
openai        the request and reply formats of OpenAI's API
generation    prompt, settings, idempotency key, output text
preprocess    from the bytes of a request to tokens, large ones in helper processes
"""
