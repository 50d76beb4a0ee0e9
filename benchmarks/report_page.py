"""How large report.html of a large run is, and how long Chromium takes to open it.

    python -m benchmarks.report_page [--ranks 64] [--points 1000] [--times 7]

It prints the figures as JSON, then the best time of each width against the bar of one second and the size
against that of 1 MB; the exit code is 1 where one is above its bar. Wall time goes from the navigation to the
second frame that is painted, CPU time is that of the page's main thread; both at 1440 and 390 pixels, each as
the best and the median of all times. Another load on the machine adds to the wall time, so the best is
nearest to that of a quiet machine.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import options_of
from tests.browser.screenshots import open_browser
from tests.support.report_pages import CONTEXT, report
from zerokit.report.html import render_html

WIDTHS = (1440, 390)
BAR_SECONDS, BAR_BYTES = 1.0, 1_000_000
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def opened(browser: Any, page_file: Path, width: int) -> tuple[float, float]:
    """Seconds of wall time and of the main thread's CPU."""
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True)
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    begun = time.monotonic()
    page.goto(page_file.as_uri())
    page.evaluate(PAINTED)
    wall = time.monotonic() - begun
    metrics = {row["name"]: row["value"] for row in session.send("Performance.getMetrics")["metrics"]}
    context.close()
    return wall, float(metrics["TaskDuration"])


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--times", type=int, default=7)
    args = parser.parse_args()
    text = render_html(report(args.ranks, args.points), CONTEXT)
    row: dict[str, Any] = {"bytes": len(text.encode()), "load_average": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory() as name, open_browser() as browser:
        page_file = Path(name) / "report.html"
        page_file.write_text(text)
        for width in WIDTHS:
            walls, cpus = zip(*(opened(browser, page_file, width) for _ in range(args.times)), strict=True)
            row[f"{width}_pixels"] = {
                "wall_seconds": [round(min(walls), 2), round(statistics.median(walls), 2)],
                "cpu_seconds": [round(min(cpus), 2), round(statistics.median(cpus), 2)],
            }
    print(json.dumps(row))
    size, kept = row["bytes"], [row["bytes"] < BAR_BYTES]
    print(f"{size / 1e6:.2f} MB, {_verdict(kept[0])} the bar of {BAR_BYTES / 1e6:g} MB")
    for width in WIDTHS:
        best = row[f"{width}_pixels"]["wall_seconds"][0]
        kept.append(best < BAR_SECONDS)
        print(f"opened in {best:.2f} s at {width} pixels, {_verdict(kept[-1])} the bar of {BAR_SECONDS:g} s")
    sys.exit(0 if all(kept) else 1)


def _verdict(within: bool) -> str:
    return "within" if within else "ABOVE"


if __name__ == "__main__":
    main()
