"""Bytes of a strategy on each rank, without running it.

``estimate`` replays DeepSpeed's allocations over a traced profile; ``closed_form`` stands in where there is
none. Standard library only.
"""
