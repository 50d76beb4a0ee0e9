"""Training without an engine, on one GPU or under DistributedDataParallel (torch 2.13)."""
