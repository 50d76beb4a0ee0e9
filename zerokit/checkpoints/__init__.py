"""Training checkpoints: what their files are, and converting them for other ranks, or to plain weights."""
