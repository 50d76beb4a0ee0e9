"""A real headless browser, where one is installed; these tests are skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
# no network, no profile of the user's, and no sandbox, which root in a container cannot have
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking",
              "--disable-component-update",
              "--disable-sync", "--disable-quic", "--no-first-run"]  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api")
    program = next((found for name in _NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium is installed (Debian and Ubuntu: apt-get install chromium)")
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        yield started
        started.close()
