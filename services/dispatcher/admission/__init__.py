"""Whether a request is admitted: queue bounds, tenants' quotas, and the texts of refusals."""
