"""What a run is judged to be, from process exits and the ranks' own files, once.

The terminal, ``report.json`` and the exit code all take it from here.
"""
