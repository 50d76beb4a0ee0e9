"""One process of the host's probe before a launch: ``python -m zerokit.doctor.host_rank JSON``.

As many run at once as the launch has ranks here, each on its GPU, since ranks share the host. Each writes its
rounds to a file of its own. It ends itself: with its parent, and at a time limit whatever it waits for.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def main() -> None:
    """Probe as the argument says.

    ``index``: of the GPU, None for the CPU. ``number``, ``count``: of this process and of all of them.
    ``folder``: where ``ready-N`` and ``rounds-N.json`` are written. ``seconds``: of the probe. ``limit``:
    whole seconds of all.
    """
    order = json.loads(sys.argv[1])
    signal.alarm(order["limit"])
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    import torch

    from zerokit.doctor.host_probe import probe_host

    on_gpu = order["index"] is not None
    device = torch.device("cuda", order["index"]) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    folder, number = Path(order["folder"]), order["number"]
    torch.ones(1, device=device)  # its context takes seconds
    (folder / f"ready-{number}").touch()
    while any(not (folder / f"ready-{other}").exists() for other in range(order["count"])):
        time.sleep(0.02)
    rounds = probe_host(device, order["seconds"])
    (folder / f"rounds-{number}.json").write_text(json.dumps(rounds), encoding="utf-8")


if __name__ == "__main__":
    main()
