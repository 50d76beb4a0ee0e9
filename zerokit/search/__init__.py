"""The choice of a strategy: the space, its search, the nearest changes that fit, and why one won.

Standard library only, values in, values out.
"""
