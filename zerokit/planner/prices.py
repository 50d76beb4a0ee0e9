"""What a GPU-hour costs, as ``--price`` gives it."""

from __future__ import annotations

from collections.abc import Sequence

from zerokit.errors import InputError


def prices_of(text: str | None, names: Sequence[str]) -> dict[str, float]:
    """GPU name → price of a GPU-hour: one price for all, or one by each name.

    Raises:
        InputError: not a positive number, two prices of one GPU, or a GPU that is not asked about.
    """
    if text is None:
        return {}
    prices: dict[str, float] = {}
    parts = text.split(",")
    if len(parts) > 1 and any("=" not in part for part in parts):
        raise InputError(
            f"⟨price⟩ {text}: commas stand between the prices of several kinds, NAME=AMOUNT,NAME=AMOUNT; "
            "write a decimal with a point, 2.10, and one price of all kinds alone"
        )
    for part in parts:
        name, equals, amount = part.rpartition("=")
        targets = [name.strip()] if equals else names
        try:
            value = float(amount)
        except ValueError:
            value = -1.0
        if not 0 < value < 1e6:
            raise InputError(
                f"⟨price⟩ {part.strip()}: expected a price per GPU-hour such as 2.10 or h200=3.5"
            )
        for target in targets:
            target = _compared(target, part.strip(), names)
            if target in prices:
                raise InputError(f"⟨price⟩ {text}: {target} has two prices; give one")
            prices[target] = value
    return prices


def _compared(target: str, part: str, names: Sequence[str]) -> str:
    """The kind of GPU that a price is of.

    Raises:
        InputError: it is none of those that are compared, or may be several of the catalogue's.
    """
    from zerokit.catalog import gpus as catalog

    if target in names:
        return target
    try:
        name = catalog.lookup(target).name
    except InputError:  # its words are about the GPUs to compare
        name, why = target, "is no GPU's whole name"
    else:
        why = "is not asked about"
    if name not in names:
        raise InputError(f"⟨price⟩ {part}: {name} {why}; compared: {', '.join(names)}")
    return name
