"""The values that every other room speaks of: model shape, job, hardware, settings, strategy, profile.

Standard library only, no files, no command line. ``families`` holds what a model's code decides and its
configuration does not say.
"""
