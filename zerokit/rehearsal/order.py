"""What the parent tells the rehearsed process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from zerokit.rehearsal.gpu import FakeGpu
from zerokit.script.option_values import LENGTHS

LENGTH_ARGUMENTS = LENGTHS
"""What a Trainer's arguments may call the length at which it cuts a sequence."""
PHASE = "phase: "
"""What a line about the progress begins with that names a phase which has begun; others are for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One rank to rehearse.

    Attributes:
        target: a script's path, or a module's name.
        output_path: the file that the script prints into.
        folder: temporary; what the process writes there remains until the parent has read it.
        unconfined: without namespaces it runs all the same, and only what Python writes is refused.
        writable: another folder whose changes remain; None: there is none.
        most_steps: optimizer steps after which the data ends.
        fewest_steps: so many are rehearsed, alike or not, where the script has them.
        progress_fd: where lines about the progress go.
        parent_pid: the process without which this one ends.
        gpu_name: in the catalogue.
        host_factor: the host's seconds over the reference host's; None: not known.
        operators_path: where the operators of one step go; None: they are not recorded.
        messages_folder: what ranks send each other, of those rehearsed before and of this one.
        unknown_senders: ranks that wait for this one's messages: theirs to it are not known.
    """

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    gpu: FakeGpu
    rank: int
    world_size: int
    most_steps: int
    folder: str
    output_path: str
    writable: str | None
    result_path: str
    progress_fd: int
    parent_pid: int
    gpu_name: str
    unconfined: bool = False
    fewest_steps: int = 0
    host_factor: float | None = None
    operators_path: str | None = None
    messages_folder: str | None = None
    unknown_senders: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Order:
        """Of :meth:`to_dict`."""
        gpu = dict(value["gpu"])
        gpu["capability"] = tuple(gpu["capability"])
        tuples = {name: tuple(value[name]) for name in ("arguments", "unknown_senders")}
        return cls(**{**value, **tuples, "gpu": FakeGpu(**gpu)})
