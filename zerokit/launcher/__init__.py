"""A real run of a plan: prepared, started, watched and judged.

A folder for each kind of process: ``supervisor`` runs beside DeepSpeed's launcher, ``rank`` inside the
user's process, ``nodes`` reaches other machines, ``verdict`` judges the run afterwards.
"""
