"""Every fact of a phase is in one table: a new one is a row there, and what runs in it a row of the hooks."""

from __future__ import annotations

import ast
from pathlib import Path

from zerokit.domain import phases
from zerokit.instrument.phases import CALLS

ROOT = Path(phases.__file__).parents[1]
TABLES = {"domain/phases.py", "instrument/phases.py"}


def test_no_other_file_lists_phases_beside_training() -> None:
    apart = {*phases.PHASES} - {*phases.TRAINING_PHASES, "load", "init", "other"}
    assert apart == {"eval", "generate", "save"}
    for file in ROOT.rglob("*.py"):
        name = str(file.relative_to(ROOT))
        source = file.read_text()
        may = name not in TABLES and sum(f'"{phase}"' in source for phase in apart) > 1
        for node in ast.walk(ast.parse(source)) if may else ():
            elements = getattr(node, "keys", None) or getattr(node, "elts", None) or ()
            texts = {element.value for element in elements if isinstance(element, ast.Constant)}
            assert len(texts & apart) < 2, f"{name}:{node.lineno} is a table of phases of its own"


def test_rows_are_whole() -> None:
    for phase in phases.ALL:
        assert phase.replay in phases.ESTIMATED_PHASES and phase.holds
        assert phase.is_training or phase.lowers
        assert len(phase.colours) in ((4,) if phase.event else (0, 2))
    assert {calls.phase for rows in CALLS.values() for calls in rows} <= {*phases.PHASES}
