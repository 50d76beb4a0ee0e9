"""``python -m zerokit`` is the ``zerokit`` command."""

from zerokit.cli import main

if __name__ == "__main__":
    main()
