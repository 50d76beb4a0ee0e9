"""The user's script: how it is read, which arguments it takes, and how it is given its configuration.

Shared by a launch and a rehearsal. The script is parsed, never imported.
"""
