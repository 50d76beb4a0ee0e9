"""Kernels of their own arithmetic (cuDNN, sparse tensors), each loaded when a script first meets it."""
