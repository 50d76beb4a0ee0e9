"""Trainers' own files (axolotl, LLaMA-Factory, ms-swift, TRL and alignment-handbook) as a plan's options."""
