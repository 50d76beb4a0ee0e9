"""``python -m zerokit`` is the ``zerokit`` command; the package itself keeps the working folder out."""

if __name__ == "__main__":
    from zerokit.cli import main

    main()
