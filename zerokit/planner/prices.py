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
    from zerokit.catalog import gpus as catalog

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
            target = target if target in names else catalog.lookup(target).name
            if target not in names:
                raise InputError(
                    f"⟨price⟩ {part.strip()}: {target} is not asked about; compared: {', '.join(names)}"
                )
            if target in prices:
                raise InputError(f"⟨price⟩ {text}: {target} has two prices; give one")
            prices[target] = value
    return prices
