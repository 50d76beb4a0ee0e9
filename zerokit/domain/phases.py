"""The parts of a run, by which memory is predicted, measured and reported."""

from __future__ import annotations

PHASES = ("load", "init", "forward", "backward", "step", "eval", "generate", "save", "other")
"""Of a whole run, in their order: ``load`` until an engine begins, ``init`` inside it, the three of a
training step, ``eval`` without gradients, ``generate``, ``save``, and ``other``: what none of these is."""

ESTIMATED_PHASES = ("init", "forward", "backward", "step")
"""Those that an estimate has: of one given strategy, without a script."""

TRAINING_PHASES = ("forward", "backward", "step")
"""Those of which a training step consists: what happens in them happens in a step."""
