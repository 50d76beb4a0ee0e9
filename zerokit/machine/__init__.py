"""This computer: its GPUs and host, the versions installed, and what was measured or tuned on it."""
