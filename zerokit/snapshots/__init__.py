"""PyTorch's memory snapshots: read without running anything of them, replayed, and explained."""
