"""The documentation's site in a real browser, on a phone and a desk, light and dark, for everybody (axe)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("name", ["index", "guide/launch", "options", "rules/index"])
def test_a_page_of_the_site_is_readable_everywhere(browser: Any, site: Path, name: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for width, scheme in ((390, "light"), (390, "dark"), (1440, "light"), (1440, "dark")):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        page = context.new_page()
        page.goto((site / f"{name}.html").as_uri())
        violations = axe.run(page).response["violations"]
        assert not violations, [
            (width, scheme, violation["id"], node["html"][:120], [check["data"] for check in node["any"]])
            for violation in violations
            for node in violation["nodes"][:3]
        ]
        context.close()
