"""DeepSpeed's allocations of one optimizer step, event by event: one file per part of DeepSpeed."""
