"""LoongServe's scheduling (SOSP '24, section 5) as pure functions: dispatching, allocation, batching, scaling."""
