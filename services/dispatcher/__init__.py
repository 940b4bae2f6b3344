"""The dispatcher: places requests and owns them until their last token is delivered. `core.py` routes to its folders:

requests     the journal of requests, fences, timers, answers kept for retries
admission    is a request accepted: queue bounds, expected wait, tenants' quotas
placement    which instance gets it
lifecycle    attempts, completion, migration, adoption
doors        the public endpoints over gRPC and HTTP; the only folder here that does I/O
"""
