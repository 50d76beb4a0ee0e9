"""What this machine has, and what a DeepSpeed run here would trip over. Imports no torch."""

from __future__ import annotations

from zerokit.doctor.examine import Examination, examine
from zerokit.doctor.finding import DoctorFinding, Surroundings

__all__ = ["DoctorFinding", "Examination", "Surroundings", "examine"]
