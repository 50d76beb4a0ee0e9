"""Screenshots of every page: those that zerokit draws, and those of the documentation's site.

    python -m tests.browser.screenshots          # takes those that are missing, removes those of pages gone
    python -m tests.browser.screenshots --drawn  # takes those of drawn pages anew, and docs/images
    python -m tests.browser.screenshots --all    # takes all anew

They are in ``docs/screenshots``: ``site/PAGE.webp`` (the first screen), and ``NAME-WIDTH.webp`` for a run,
a failed run, two runs, a rehearsal and a plan, whole. ``docs/images`` has the same as ``test_pages.py``
compares them (``page-NAME.png``), and the picture of the README (``plan.png``). ``tests/test_docs.py`` fails
where a screenshot is missing. Needs Chromium.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.report_pages import NAMES, write_pages
from tests.support.site import build_site, site_pages

DOCS = Path(__file__).parents[2] / "docs"
IMAGES = DOCS / "images"
SCREENSHOTS = DOCS / "screenshots"
WIDTHS = (390, 800, 1440)
_SITE_SIZE = (1200, 900)
_HIGHEST = 6000
_SCALE = 0.6
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# no network, no profile of the user's, and no sandbox, which root in a container cannot have
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking",
              "--disable-component-update",
              "--disable-sync", "--disable-quic", "--no-first-run"]  # fmt: skip


def wanted(site: Path) -> dict[Path, tuple[Path, int]]:
    """Screenshot → page of the built site, width. Those of drawn pages have no file yet: see ``drawn``."""
    pages = {
        SCREENSHOTS / "site" / page.with_suffix(".webp"): site / page
        for page in site_pages(site)
        if page.parts[0] != "rules"
    }  # one form, generated: nothing to look at in each
    return {shot: (page, _SITE_SIZE[0]) for shot, page in pages.items()}


def drawn() -> dict[Path, tuple[str, int]]:
    """Screenshot → name of the drawn page, width."""
    return {SCREENSHOTS / f"{name}-{width}.webp": (name, width) for name in NAMES for width in WIDTHS}


@contextmanager
def open_browser() -> Iterator[Any]:
    """Chromium, headless.

    Raises:
        FileNotFoundError: there is none.
    """
    import shutil

    from playwright.sync_api import sync_playwright

    program = next((found for name in _BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        raise FileNotFoundError("no Chromium is installed (Debian and Ubuntu: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        yield browser
        browser.close()


def half_size(browser: Any, path: Path) -> tuple[Any, Any]:
    """Context and page of a drawn page at half its size, as ``docs/images`` has them."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 1500}, device_scale_factor=0.5, color_scheme="light", offline=True
    )
    page = context.new_page()
    page.goto(path.as_uri())
    return context, page


def _take(browser: Any, path: Path, width: int, shot: Path, *, whole: bool) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": _SITE_SIZE[1]}, color_scheme="light", offline=True
    )
    page = context.new_page()
    page.goto(path.as_uri())
    height = _SITE_SIZE[1]
    if whole:
        height = min(_HIGHEST, page.evaluate("document.documentElement.scrollHeight"))
    clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": _SCALE}
    answer = context.new_cdp_session(page).send(
        "Page.captureScreenshot",
        {"format": "webp", "quality": 20 if whole else 30, "clip": clip, "captureBeyondViewport": whole},
    )
    shot.parent.mkdir(parents=True, exist_ok=True)
    shot.write_bytes(base64.b64decode(answer["data"]))
    context.close()


def _take_images(browser: Any, pages: dict[str, Path]) -> None:
    for name, path in pages.items():
        context, page = half_size(browser, path)
        page.screenshot(path=IMAGES / f"page-{name}.png")
        context.close()
    page = browser.new_page(viewport={"width": 900, "height": 1420}, color_scheme="light")
    page.goto(pages["plan"].as_uri())
    page.screenshot(path=IMAGES / "plan.png")
    page.close()


def _take_site(browser: Any, folder: Path, *, again: bool) -> None:
    build_site(folder)
    shots = wanted(folder)
    for shot in set(SCREENSHOTS.rglob("*.webp")) - {*shots, *drawn()}:
        shot.unlink()
    for shot, (path, width) in shots.items():
        if again or not shot.is_file():
            _take(browser, path, width, shot, whole=False)


def _take_drawn(browser: Any, folder: Path, *, again: bool) -> None:
    pages = write_pages(folder)
    for shot, (name, width) in drawn().items():
        if again or not shot.is_file():
            _take(browser, pages[name], width, shot, whole=True)
    if again:
        _take_images(browser, pages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--drawn", action="store_true", help="take those of drawn pages anew, and no others")
    parser.add_argument("--all", action="store_true", help="take all anew")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="zk-screenshots-") as name, open_browser() as browser:
        if not args.drawn:
            _take_site(browser, Path(name) / "site", again=args.all)
        _take_drawn(browser, Path(name), again=args.all or args.drawn)
    sizes = [shot.stat().st_size for shot in SCREENSHOTS.rglob("*.webp")]
    print(f"{len(sizes)} screenshots, {sum(sizes) / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
