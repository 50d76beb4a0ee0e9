"""Writes ``zerokit/catalog/prices.json`` from SkyPilot's public catalogue.

python -m tools.prices FOLDER DATE WHY    # FOLDER/PROVIDER/vms.csv, as in skypilot-catalog's catalogs/v8

``DATE``: of the oldest file, or one that no file is older than; ``WHY``: how that is known, for the table.
"""

from __future__ import annotations

import csv
import datetime
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from zerokit.catalog.prices import SHIPPED, Listed, Prices, as_text, offers_of

SOURCE = "SkyPilot's catalogue (github.com/skypilot-org/skypilot-catalog, catalogs/v8)"
LICENCE = (
    "prices as the providers publish them, the lowest of the regions read for each GPU, provider and size of "
    "instance; SkyPilot, which collects them, is licensed under Apache-2.0, and its catalogue names no other"
)


def listed(folder: Path) -> Iterator[Listed]:
    """The lines of all files that have a GPU and a price."""
    for path in sorted(folder.glob("*/vms.csv")):
        provider = path.parent.name
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                number = round(float(row["AcceleratorCount"] or 0))
                size = re.search(r"SizeInMiB\D+(\d+)", row.get("GpuInfo") or "")
                if not number or size is None:
                    continue
                gib = float(size[1]) / (1024 if float(size[1]) > 1000 else 1)  # some write GiB
                for price, spot in ((row["Price"], False), (row["SpotPrice"], True)):
                    if price:
                        yield Listed(
                            name=re.sub(r"(?<=\dGB)-\d+GB$", "", row["AcceleratorName"]),
                            gib=gib / (number if provider == "verda" else 1),  # it writes that of all
                            provider=provider, gpus=number, usd=float(price), spot=spot,
                            instance=f"{row['InstanceType']} {row['GpuInfo']}",
                        )  # fmt: skip


def main() -> None:
    """Write the table."""
    folder, date, why = sys.argv[1:]
    offers = offers_of(listed(Path(folder)))
    prices = Prices(date=datetime.date.fromisoformat(date), source=SOURCE, offers=offers)
    SHIPPED.write_text(as_text(prices, date_known_by=why, licence=LICENCE), encoding="utf-8")
    print(f"{SHIPPED}: {len(offers)} offers of {len({offer.gpu for offer in offers})} GPUs", file=sys.stderr)


if __name__ == "__main__":
    main()
