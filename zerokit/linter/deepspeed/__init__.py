"""Checks of DeepSpeed JSON: keys, values, ``auto``, parameters, and what DeepSpeed's own classes say.

The tables of keys, one for each release, are beside the code.
"""
