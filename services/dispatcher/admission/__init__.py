"""Whether a request is taken at all: queue bounds, tenants' quotas, and the texts of refusals."""
