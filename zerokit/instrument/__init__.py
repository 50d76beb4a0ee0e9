"""Hooks that a launch or a rehearsal puts inside the user's process.

Imported there before the script's own imports, so nothing here imports torch when it is imported.
"""
