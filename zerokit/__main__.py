"""``python -m zerokit`` is the ``zerokit`` command; the package itself keeps the working folder out."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C while its modules are being imported ends it without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from zerokit.cli import main as run

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
