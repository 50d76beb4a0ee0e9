"""One step of a model recorded as allocations, and fitted over batch and length."""
