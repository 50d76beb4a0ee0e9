"""``zerokit check``: finds what DeepSpeed and Accelerate refuse, ignore or misread in a configuration.

``deepspeed`` and ``accelerate`` hold the checks of each; :mod:`zerokit.rules` those that a plan obeys too.
"""
