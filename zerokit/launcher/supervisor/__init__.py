"""What runs beside DeepSpeed's launcher: it watches the ranks, shows progress and ends what hangs.

``guard`` is a process of its own, standard library only, that outlives zerokit.
"""
