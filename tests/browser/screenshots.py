"""The pictures in ``docs/images``: drawn pages as ``test_pages.py`` compares them, and that of the README.

python -m tests.browser.screenshots     # takes all anew; needs Chromium
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.report_pages import write_pages

IMAGES = Path(__file__).parents[2] / "docs" / "images"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# no network, no profile of the user's, and no sandbox, which root in a container cannot have
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking",
              "--disable-component-update",
              "--disable-sync", "--disable-quic", "--no-first-run"]  # fmt: skip


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


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="zk-screenshots-") as name, open_browser() as browser:
        pages = write_pages(Path(name))
        for page_name, path in pages.items():
            context, page = half_size(browser, path)
            page.screenshot(path=IMAGES / f"page-{page_name}.png")
            context.close()
        page = browser.new_page(viewport={"width": 900, "height": 1420}, color_scheme="light")
        page.goto(pages["plan"].as_uri())
        page.screenshot(path=IMAGES / "plan.png")
        page.close()


if __name__ == "__main__":
    main()
