"""FSDP2 (``torch.distributed.fsdp.fully_shard``, torch 2.13), allocation by allocation."""
