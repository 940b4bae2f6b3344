"""Whether a request is accepted: queue bounds, tenants' quotas, and the texts of refusals."""
