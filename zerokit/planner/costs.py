"""What the GPU-hours of an answer cost: at given prices, or at those of the catalogue's table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from zerokit.catalog import prices as catalog
from zerokit.errors import InputError
from zerokit.notes import Note

if TYPE_CHECKING:
    from zerokit.domain.hardware import Gpu
    from zerokit.search.sizing import Size


def costs_of(
    price: str | None, kinds: Sequence[Gpu], *, is_other_card: bool
) -> tuple[catalog.Prices | None, Callable[[Size], dict[str, Any]]]:
    """The table, where no price is given, and what gives the prices of an answer's row. ``is_other_card``:
    the cards have another memory than the catalogue's, and so another price. Raises InputError: as
    :func:`prices_of`."""
    given = prices_of(price, [gpu.name for gpu in kinds])
    table = catalog.table() if price is None and not is_other_card else None

    def costs(size: Size) -> dict[str, Any]:
        if table is None or not size.gpus:
            return {"price_per_gpu_hour": given.get(size.gpu.name)}
        demand, spot = (
            table.rate(size.gpu.name, size.gpus // size.nodes, spot=on_spot) for on_spot in (False, True)
        )
        rented = {} if demand is None else {"price_per_gpu_hour": demand.usd, "provider": demand.provider}
        return {**rented, "spot": spot}

    return table, costs


def price_notes(table: catalog.Prices | None, on_several_nodes: bool) -> tuple[Note, ...]:
    """How old the table's prices are, and what they leave out."""
    if table is None:
        return ()
    text = f"on-demand prices of {table.date}, in USD"
    if table.is_old:
        text = f"prices over {catalog.OLD_DAYS} days old, of {table.date}: `zerokit gpus --update-prices`"
    if on_several_nodes:
        text += "; a fast network between several nodes may cost more"
    return (Note("prices", text),)


def prices_of(text: str | None, names: Sequence[str]) -> dict[str, float]:
    """GPU name → price of a GPU-hour: one price for all, or one by each name. Raises InputError: not a
    positive number, two prices of one GPU, or a GPU that is not asked about."""
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
    """The kind of GPU that a price is of. Raises InputError: it is none of those that are compared, or may be
    several of the catalogue's."""
    from zerokit.catalog import gpus

    if target in names:
        return target
    try:
        name = gpus.lookup(target).name
    except InputError:  # its words are about the GPUs to compare
        name, why = target, "is no GPU's whole name"
    else:
        why = "is not asked about"
    if name not in names:
        raise InputError(f"⟨price⟩ {part}: {name} {why}; compared: {', '.join(names)}")
    return name
