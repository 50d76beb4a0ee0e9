"""Write docs/check-rules.md from the linter's rules: ``python -m tools.rule_pages``."""

from __future__ import annotations

import pathlib
import sys

from zerokit.linter.explain import page

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "check-rules.md"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE, file=sys.stderr)


if __name__ == "__main__":
    main()
