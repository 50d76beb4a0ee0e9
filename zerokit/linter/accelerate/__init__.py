"""Checks of accelerate YAML, one file for each part of it."""
