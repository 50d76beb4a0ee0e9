"""Rehearsals beside measured runs: ``python -m benchmarks.rehearsal``."""
