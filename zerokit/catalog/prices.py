"""What rented GPUs cost: a dated table beside the catalogue (``prices.json``, with its source and licence),
or the newer one that ``zerokit gpus --update-prices`` keeps in the user's cache folder."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from zerokit.catalog import gpus
from zerokit.errors import InputError
from zerokit.files import cache_folder, read_regular, write_whole
from zerokit.units import GIB
from zerokit.values import frozen_dataclass

SCHEMA = "zerokit.prices/1"
SHIPPED = Path(__file__).parent / "prices.json"
OLD_DAYS = 90
_MOST_BYTES = 1 << 22
_FORMS = {
    "sxm": re.compile(r"sxm|hbm3|standard_nd|gpu_8x_a100|lambdalabs_a100x8"),
    "pcie": re.compile(r"pcie|standard_nc"),
}
"""How an instance's name tells the form of its cards. Lambda's eight A100 are SXM, whatever their name."""
_FORM_OF_PROVIDER = {
    **dict.fromkeys(("aws", "gcp", "oci", "nebius", "verda", "hyperbolic"), "sxm"),
    **dict.fromkeys(("lambda", "lambdalabs", "runpod", "shadeform", "lium"), "pcie"),
}
"""The form of an H100 or A100 whose instance does not say: these rent one form, or name the other SXM. Of
other providers such a card is left out."""


@frozen_dataclass
class Offer:
    """An instance that somebody rents out.

    Attributes:
        gpu: as the catalogue names it.
        gpus: of the instance, all of which are paid.
        usd: US dollars per GPU-hour on demand; None: on spot alone.
        spot_usd: the same on spot, where the instance can be taken away; None: not offered.
    """

    gpu: str
    provider: str
    gpus: int
    usd: float | None
    spot_usd: float | None


@frozen_dataclass
class Rate:
    """What a GPU-hour that is used costs at the cheapest provider. ``usd``: US dollars; more than the offer's
    where GPUs of its instance are paid and not used."""

    provider: str
    usd: float


@frozen_dataclass
class Prices:
    """A table of prices. ``date``: no price in it is older; of the shipped ones the source does not tell
    more. ``source``: where they are from."""

    date: datetime.date
    source: str
    offers: tuple[Offer, ...]

    @property
    def days_old(self) -> int:
        """Days since its date, at least 0."""
        return max(0, (datetime.date.today() - self.date).days)

    @property
    def is_old(self) -> bool:
        """Whether it is older than prices should be."""
        return self.days_old > OLD_DAYS

    def rate(self, gpu: str, per_node: int, *, spot: bool = False) -> Rate | None:
        """The lowest rate at which nodes with so many of these GPUs are rented; None: nobody does."""
        rates = [
            (each * offer.gpus / per_node, offer.provider)
            for offer in self.offers
            if offer.gpu == gpu and offer.gpus >= per_node
            and (each := offer.spot_usd if spot else offer.usd) is not None
        ]  # fmt: skip
        if not rates:
            return None
        usd, provider = min(rates)
        return Rate(provider=provider, usd=usd)


@frozen_dataclass
class Listed:
    """A line of a catalogue of instances, in its own words.

    Attributes:
        name: of the GPU.
        gib: the memory of one.
        gpus: how many the instance has.
        instance: its name, which may tell the form of the cards.
        usd: US dollars per hour of the whole instance.
    """

    name: str
    gib: float
    provider: str
    instance: str
    gpus: int
    usd: float
    spot: bool


def table() -> Prices:
    """The newer of the shipped table and the user's own."""
    shipped, own = _read(SHIPPED), None
    # none, or of another version: the shipped one holds
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        own = _read(_own_path())
    return shipped if own is None or own.date < shipped.date else own


def update() -> Prices:
    """Fetch the catalogues of dstack's gpuhunt, and keep the table for this user. Raises InputError: gpuhunt
    is not installed, or nothing could be fetched; the table is what it was."""
    prices = fetched()
    path = _own_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, as_text(prices), through_links=True)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); prices are unchanged") from None
    return prices


def fetched() -> Prices:
    """The table that gpuhunt's catalogues make, dated as the oldest of them. Raises InputError: as
    :func:`update`."""
    import logging
    import socket

    try:
        from gpuhunt import Catalog, GPUHuntError
    except ImportError:
        raise InputError(
            "prices are fetched by gpuhunt, which is not installed: pip install gpuhunt"
        ) from None
    logging.getLogger("gpuhunt").setLevel(logging.CRITICAL)  # it logs tracebacks of what fails
    catalog = Catalog(balance_resources=False, auto_reload=False)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)
    try:
        catalog.load()
    except GPUHuntError as error:
        why = error.__cause__ or error
        raise InputError(f"gpuhunt's catalogues cannot be fetched ({why}); prices are unchanged") from None
    finally:
        socket.setdefaulttimeout(before)
    dates = []
    for provider, loaded in catalog.catalog.items():
        if (found := re.match(r"(\d{4})(\d\d)(\d\d)", loaded.version)) is None:
            told = f"gpuhunt's catalogue of {provider} has no date ({loaded.version})"
            raise InputError(f"{told}; prices are unchanged")
        dates.append(datetime.date(*map(int, found.groups())))
    items = catalog.query(provider=sorted(catalog.catalog), min_gpu_count=1)
    offers = offers_of(
        Listed(name=item.gpu_name, gib=item.gpu_memory, provider=item.provider, usd=item.price,
               instance=item.instance_name, gpus=item.gpu_count, spot=item.spot)
        for item in items if item.gpu_name and item.gpu_memory
    )  # fmt: skip
    if not offers:
        raise InputError("gpuhunt's catalogues have none of the GPUs that are known; prices are unchanged")
    source = f"dstack's gpuhunt ({', '.join(sorted(catalog.catalog))})"
    return Prices(date=min(dates), source=source, offers=offers)


def offers_of(lines: Iterable[Listed]) -> tuple[Offer, ...]:
    """The lowest price of each GPU, provider and number of GPUs; what is no GPU of ours, or may be two, is
    left out, and so is a spot price that is no lower than the other."""
    lowest: dict[tuple[str, str, int], dict[bool, float]] = {}
    for line in lines:
        if line.usd > 0 and line.gpus > 0 and (gpu := matched(line)) is not None:
            known = lowest.setdefault((gpu, line.provider, line.gpus), {})
            known[line.spot] = min(line.usd / line.gpus, known.get(line.spot, float("inf")))
    return tuple(
        Offer(gpu=gpu, provider=provider, gpus=number, usd=usd,
              spot_usd=spot if spot is not None and (usd is None or spot < usd) else None)
        for (gpu, provider, number), known in sorted(lowest.items())
        for usd, spot in [(_rounded(known.get(False)), _rounded(known.get(True)))]
    )  # fmt: skip


def matched(line: Listed) -> str | None:
    """The catalogue's name of a GPU in another catalogue, by what services call it, its memory and the form
    of its card; None: it is not known, or may be several."""
    found = [
        gpu.name
        for gpu in _sold().get(_plain(line.name), ())
        if abs(line.gib * GIB / gpu.driver_vram_bytes - 1) < 0.09
    ]
    if len(found) > 1 and any("pcie" in name for name in found):
        told = f"{line.name} {line.instance}".lower()
        forms = [form for form, words in _FORMS.items() if words.search(told)]
        form = forms[0] if forms else _FORM_OF_PROVIDER.get(line.provider)
        found = [name for name in found if form and ("pcie" in name) == (form == "pcie")]
    elif len(found) > 1:  # two editions of a card: a server's is rented out
        found = [name for name in found if "server" in name]
    return found[0] if len(found) == 1 else None


def as_text(prices: Prices, **more: str) -> str:
    """The table as its file has it, an offer a line; ``more``: what else the file says."""
    head = {"schema": SCHEMA, "date": prices.date.isoformat(), "currency": "USD", "source": prices.source}
    rows = [[offer.gpu, offer.provider, offer.gpus, offer.usd, offer.spot_usd] for offer in prices.offers]
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in (head | more).items()]
    listed = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    return "\n".join(["{", *lines, f' "offers": [\n{listed}\n ]', "}", ""])


def _own_path() -> Path:
    return cache_folder() / "prices.json"


def _read(path: Path) -> Prices:
    """A table. Raises OSError, ValueError, TypeError, KeyError: it is none of this version's."""
    body = json.loads(read_regular(path, _MOST_BYTES))
    if body["schema"] != SCHEMA or body["currency"] != "USD":
        raise ValueError(path)
    offers = tuple(_offer(*row) for row in body["offers"])
    date = datetime.date.fromisoformat(body["date"])
    return Prices(date=date, source=str(body["source"]), offers=offers)


def _offer(gpu: str, provider: str, number: int, usd: float | None, spot_usd: float | None) -> Offer:
    if not all(each is None or 0 < each < 1e6 for each in (usd, spot_usd)) or number < 1:
        raise ValueError(f"{gpu} at {provider}")
    return Offer(gpu=gpu, provider=provider, gpus=number, usd=usd, spot_usd=spot_usd)


@functools.cache
def _sold() -> dict[str, list[Any]]:
    """GPUs by what services call them, which several may share."""
    sold: dict[str, list[Any]] = {}
    for gpu in gpus.catalog():
        for name in {_plain(called) for called in _called(gpu.name)}:
            sold.setdefault(name, []).append(gpu)
    return sold


def _called(name: str) -> Iterator[str]:
    for service in ("skypilot", "dstack"):
        if called := gpus.sold_as(name, service):
            yield called


def _plain(name: str) -> str:
    """A card's name without vendor, memory and form: ``A100-80GB-SXM`` and ``A100:80GB`` are ``a100``."""
    left_out = re.compile(r"|\d+gb?|sxm\d*|pcie|nvlink|nvidia|tesla|amd|instinct")
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if not left_out.fullmatch(word)]
    return re.sub(r"^rtx(?=a\d)", "", "".join(words))


def _rounded(usd: float | None) -> float | None:
    return None if usd is None else round(usd, 4)
