"""What is taken for a host that nobody described, and where it decides: its memory and its cores."""

from __future__ import annotations

from zerokit.domain.hardware import Cluster
from zerokit.domain.strategy import Candidate
from zerokit.search.explain import host_lack_words
from zerokit.search.search import HOST_REASON, SearchResult
from zerokit.units import GIB, format_gib


def note_on_choice(chosen: Candidate, cluster: Cluster, result: SearchResult) -> tuple[str, ...]:
    """What was taken for the host's memory, where the choice depends on it."""
    zero = chosen.strategy.settings.zero
    offloads = zero.offload_optimizer.device != "none" or zero.offload_param.device != "none"
    if cluster.host_ram_bytes is not None or not (offloads or HOST_REASON in result.rejected):
        return ()
    need = chosen.memory.host_bytes_per_node / GIB
    return (f"{assumed_host(cluster)}; this plan needs {need:,.0f} GiB of it",)


def note_on_cores(chosen: Candidate, cluster: Cluster) -> tuple[str, ...]:
    """What is assumed of the cores that step an offloaded optimizer.

    Of one rank per node, nothing: `torchrun` sets OMP_NUM_THREADS only for several (PyTorch 2.13,
    torch/distributed/run.py:872), and `accelerate launch` with DeepSpeed runs that.
    """
    if cluster.gpus_per_node == 1 or chosen.strategy.settings.zero.offload_optimizer.device == "none":
        return ()
    return (
        "step time: the ranks share the node's cores for their offloaded optimizer; `zerokit launch` and the "
        "jobs of `zerokit emit` see to that, `torchrun` and `accelerate launch` leave each one core (set "
        "OMP_NUM_THREADS)",
    )


def note_on_estimate(candidate: Candidate, cluster: Cluster) -> tuple[str, ...]:
    """Where a strategy takes more host memory than nodes with such GPUs have, as far as is known."""
    if cluster.host_ram_bytes is not None or not host_lack_words(candidate.memory, cluster):
        return ()
    required = format_gib(candidate.memory.host_bytes_per_node, 1)
    return (f"{assumed_host(cluster)}; this strategy requires {required}",)


def assumed_host(cluster: Cluster) -> str:
    """What is taken for the host memory of a node, and its source."""
    gpu, limit = cluster.gpu, cluster.host_limit_bytes
    if limit is None:
        return "host memory is no limit: ⟨host_ram⟩ not given"
    source = gpu.sources.get("host_gib_per_gpu", "")
    return (
        f"host memory assumed: {limit / GIB:,.0f} GiB per node, {gpu.host_bytes_per_gpu / GIB:,.0f} GiB per "
        f"GPU ({source}); ⟨host_ram⟩ not given"
    )
