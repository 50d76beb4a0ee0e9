"""Facts about GPUs, models and traced profiles: one data file each, and their readers.

Nothing is computed here. ``gpus``, ``models`` and ``profiles`` look an entry up by the names people use.
"""
