"""``python -m zerokit`` is the ``zerokit`` command."""

import os
import sys

if __name__ == "__main__":
    # ``-m`` puts the working folder first: its yaml.py or torch.py must not become ours. Our own
    # package is found already, and its modules are looked up beside this file.
    if not getattr(sys.flags, "safe_path", False) and sys.path and sys.path[0] in ("", os.getcwd()):  # noqa: PTH109
        del sys.path[0]
        root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
        if root not in sys.path:  # not installed: run from a checkout
            sys.path.append(root)
    from zerokit.cli import main

    main()
