"""A real headless browser, where one is installed; these tests are skipped where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.screenshots import open_browser


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    pytest.importorskip("playwright.sync_api")
    try:
        with open_browser() as opened:
            yield opened
    except FileNotFoundError as error:
        pytest.skip(str(error))
