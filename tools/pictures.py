"""Take the documentation's pictures: ``python -m tools.pictures`` (needs Chromium and playwright)."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import tempfile

from zerokit.cli import run

FOLDER = pathlib.Path(__file__).parents[1] / "docs" / "images"
PLAN = ["plan", "--model", "llama-3.1-8b", "--gpus", "8", "--gpu", "a100-80gb", "--seq-len", "4096", "-q"]
_WIDTH, _HEIGHT = 900, 1420


def main() -> None:
    """Draw the plan of the first page and photograph it."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        page_file = pathlib.Path(name, "plan.html")
        os.chdir(name)  # the page names the plan's folder, as somebody has it who types the command
        if run([*PLAN, "--html", page_file.name]) != 0:
            raise SystemExit("the plan could not be made")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT}, color_scheme="light")
        page.goto(page_file.as_uri())
        page.screenshot(path=FOLDER / "plan.png")
        browser.close()
    print(FOLDER / "plan.png", file=sys.stderr)


if __name__ == "__main__":
    main()
