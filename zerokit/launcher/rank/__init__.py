"""What runs inside each rank: the probe, its hooks, and the file that it writes.

Imports nothing of the supervisor, and torch only once the script has it.
"""
