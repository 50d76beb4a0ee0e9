"""How well ``zerokit check`` finds what DeepSpeed, the Trainer and Accelerate do with a file."""
