"""Which releases of Transformers the catalogue's traces hold for.

``python -m tools.sweep_transformers`` traces models of every type with the release that is installed beside
it, and sets what forward and backward allocate against the catalogue's. Run with 4.56.2, 5.17.0 and 5.23.0,
it found two types that changed, :data:`CHANGED` (which were then traced with releases between these); all
others stayed within half a percent. Models of the two may have a profile for each range:
``profiles/NAME.before-5.20.json.gz``.
"""

from __future__ import annotations

OLDEST = "4.56"
"""The oldest release that was swept."""
NEWEST = "5.23"
"""The newest release that was swept."""
OLDEST_COMPARED = {
    "bart": "5.17",
    "bert": "5.17",
    "deepseek_v2": "5.17",
    "deepseek_v3": "5.17",
    "distilbert": "5.17",
    "gpt_oss": "5.0",
    "ministral3": "5.17",
    "mixtral": "5.0",
    "opt": "5.17",
    "qwen3_moe": "5.0",
    "roberta": "5.17",
    "xlm-roberta": "5.17",
}
"""Model type -> the oldest release that was compared, where the code of 4.56 could not be traced: it reads
values of its inputs, runs as many operators as experts are chosen, or does not know the type."""
CHANGED = {"gemma2": ("5.21",), "t5": ("5.0", "5.15", "5.20")}
"""Model type -> the releases whose code keeps more or less for backward than the one before."""


def alike(model_type: str, one: str, other: str) -> bool:
    """Whether two releases are known to allocate alike for models of a type."""
    older, newer = sorted((one, other), key=_release)
    oldest = OLDEST_COMPARED.get(model_type, OLDEST)
    if is_before(older, oldest) or is_before(NEWEST, newer):
        return False
    return not any(is_before(older, at) and not is_before(newer, at) for at in CHANGED.get(model_type, ()))


def is_before(version: str, release: str) -> bool:
    """Whether a version is older than a release: 5.19.1 than 5.20."""
    return _release(version) < _release(release)


def _release(version: str) -> tuple[int, ...]:
    """``(5, 19)`` of ``5.19.1``; empty, before all, where it is no number."""
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdigit() for part in parts) else ()
