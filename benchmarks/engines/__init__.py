"""The same jobs under DeepSpeed and FSDP2, predicted and then measured."""
