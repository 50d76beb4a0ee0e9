"""zerokit: plan, launch and measure DeepSpeed training before the GPU hours are spent."""

__version__ = "0.1.0"
