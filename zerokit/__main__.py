"""``python -m zerokit`` is the ``zerokit`` command; the package itself keeps the working folder out."""

import os
import signal
import sys


def main() -> None:
    """Run the command line. Ctrl-C while its modules are being imported ends it without a traceback."""
    # A standard stream that was closed (`2>&-`) leads nowhere, and gets no other file
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from zerokit.cli import main as run

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
