"""How long collectives take, and which link carries them.

Ring algorithms (Patarasuk & Yuan 2009; NCCL's "bus bandwidth"): an all-reduce of S bytes over n
ranks moves 2·S·(n−1)/n through every rank, an all-gather or reduce-scatter half of that. The
bandwidth grows with the message, β(S) = β∞·S/(S + S½). Ranks lie in the order tensor, sequence,
data, pipeline, from the inside of a node outwards, as DeepSpeed's topology has them
(``deepspeed/runtime/pipe/topology.py``, axes pipe, data, model).
"""

from __future__ import annotations

from zerokit.domain.hardware import Cluster
from zerokit.timing.constants import Calibration, Constants
from zerokit.values import frozen_dataclass

_NO_PEER_SHARE = 0.5  # without peer access every byte goes through host memory: up and down again


@frozen_dataclass
class Route:
    """One process group's way: how many ranks, over what, how fast.

    Attributes:
        kind: ``link`` inside a node, ``network`` between nodes.
        bytes_per_second: bus bandwidth for very large messages.
    """

    ranks: int
    kind: str
    bytes_per_second: float
    half_bytes: float
    latency_seconds: float

    def seconds(self, size_bytes: float, *, passes: int = 1, messages: int = 1) -> float:
        """Time to move ``size_bytes`` in ``messages`` collectives; ``passes``: 1 for an all-gather or
        reduce-scatter (or all-to-all), 2 for an all-reduce."""
        if self.ranks < 2 or size_bytes <= 0:
            return 0.0
        message_bytes = size_bytes / messages
        rate = self.bytes_per_second * message_bytes / (message_bytes + self.half_bytes)
        share = (self.ranks - 1) / self.ranks
        return messages * (passes * share * message_bytes / rate + self.latency_seconds)


@frozen_dataclass
class Flow:
    """Data-parallel traffic: seconds per micro-batch and per step.

    Attributes:
        overlapped: compute hides what crosses per micro-batch; ``overlapped_at_end``: the last backward what
            crosses per step.
    """

    route: Route
    per_micro: float
    per_step: float
    overlapped: bool
    overlapped_at_end: bool = False


def route(
    cluster: Cluster,
    ranks: int,
    inner_ranks: int,
    constants: Constants,
    calibration: Calibration | None = None,
    share: float = 1.0,
) -> Route:
    """The way of a group of ``ranks`` whose neighbours are ``inner_ranks`` apart.

    A group that leaves the node shares the node's network with the ``inner_ranks`` (at most all of
    the node's GPUs) other groups that do so at the same time. ``share`` of the link is used.
    """
    gpu, per_node = cluster.gpu, cluster.gpus_per_node
    link = gpu.link_bytes_per_second * constants.link_efficiency
    if not gpu.peer_to_peer:
        link *= _NO_PEER_SHARE
    if calibration and calibration.allreduce_bytes_per_second:
        link = calibration.allreduce_bytes_per_second
    if ranks * inner_ranks <= per_node:
        return Route(
            ranks=ranks,
            kind="link",
            bytes_per_second=link * share,
            half_bytes=constants.half_bytes,
            latency_seconds=constants.latency_seconds,
        )
    network = cluster.node_network_bytes_per_second * constants.network_efficiency
    if calibration and calibration.network_bytes_per_second:
        network = calibration.network_bytes_per_second
    groups = min(per_node, inner_ranks)
    return Route(
        ranks=ranks,
        kind="network",
        bytes_per_second=min(link, network / groups) if inner_ranks < per_node else network / groups,
        half_bytes=constants.network_half_bytes,
        latency_seconds=constants.network_latency_seconds * (1 + ranks * inner_ranks // per_node) ** 0.5,
    )
