"""Run the user's unmodified training script on a GPU that is not there.

``conduct`` starts it in a process of its own; ``process`` is what runs in there. Nothing outside of this
package imports from ``process``.
"""
