"""Seconds of an optimizer step: a model of compute, collectives and host, and its calibration.

Standard library only. ``constants`` holds every measured figure with its source.
"""
