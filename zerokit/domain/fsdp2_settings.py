"""The settings of FSDP2 (``torch.distributed.fsdp.fully_shard``, torch 2.13) that move memory or time."""

from __future__ import annotations

from typing import ClassVar

from zerokit.domain.training_settings import TrainingSettings
from zerokit.values import frozen_dataclass

PARALLELISM_PREFIX = "parallelism_config_"
"""What the keys of Accelerate's ``parallelism_config`` begin with."""


@frozen_dataclass
class Fsdp2Settings(TrainingSettings):
    """One configuration of FSDP2.

    Attributes:
        precision: of the weights as forward uses them, ``MixedPrecisionPolicy.param_dtype``; fp32: no policy.
        reshard_after_forward: gathered weights are freed after a layer's forward, and gathered again for its
            backward.
        replicas: groups of ranks that each hold all shards (hybrid sharding, a mesh of two dimensions).
        offload: ``CPUOffloadPolicy``: weights, gradients and states are on the CPU.
        reduce_dtype: dtype in which gradients are reduced, fp32 for example; None: that of the weights as
            forward uses them.
        master_bytes: of an element of the trained shards; 4 where Accelerate upcasts them.
        frozen_bytes: of an element of the others; None: of the dtype that forward uses.
        wrapping: ``accelerate``: the groups that Accelerate makes (accelerate/utils/fsdp_utils.py,
            ``fsdp2_prepare_model``, 1.14 and later); ``layers``: decoder layers, and the rest in the root.
        sync_each_batch: gradients are reduced after every micro-batch, as Accelerate's
            ``GradientAccumulationPlugin(sync_each_batch=True)`` does; else those of all but the last stay
            whole (``no_sync``, ``set_requires_gradient_sync(False)``).
        broadcasts: rank 0 sends its weights to all ranks, parameter by parameter (Accelerate's
            ``cpu_ram_efficient_loading``); else every rank divides its own copy.
        rotation: how ranks that share a sequence exchange keys and values (Accelerate's
            ``cp_comm_strategy``): ``allgather``, all at once, or ``alltoall``, from one rank to the next.
        tp_size: ranks that divide the layers, by Transformers' ``DistributedConfig``: it then loads each
            rank's part and groups the weights itself (``_fsdp_plan``, distributed/fsdp.py:186, 5.23).
        loads_once: with ``broadcasts``, the script fills the weights on one rank of each node; the others
            allocate them and never touch them.
    """

    engine: ClassVar[str] = "fsdp2"
    reshard_after_forward: bool = True
    replicas: int = 1
    offload: bool = False
    reduce_dtype: str | None = None
    master_bytes: int = 4
    frozen_bytes: int | None = None
    wrapping: str = "accelerate"
    sync_each_batch: bool = False
    broadcasts: bool = False
    tp_size: int = 1
    loads_once: bool = False
    rotation: str = "allgather"

    @property
    def title(self) -> str:
        """The name, and how it divides where that is not over all ranks, or not after forward."""
        kept = "" if self.reshard_after_forward else " keeping gathered weights"
        return f"FSDP2{kept}" + (f" in {self.replicas} replicas" if self.replicas > 1 else "")

    @property
    def family(self) -> tuple[object, ...]:
        """All but the dtype of the reduction and the groups of parameters."""
        return (self.engine, self.reshard_after_forward, self.replicas, self.offload)

    def published(self, ranks: int) -> dict[str, object]:
        """Ranks that hold one copy of the shards, how many copies, and what DeepSpeed has in its file."""
        return {
            "sharding": ranks // self.replicas,
            "replicas": self.replicas,
            "reshard_after_forward": self.reshard_after_forward,
            "gradient_clipping": self.gradient_clipping,
        }

    @property
    def parameter_bytes(self) -> int:
        """Bytes of one parameter as the forward pass uses it."""
        return 4 if self.precision == "fp32" else 2

    @property
    def state_element_bytes(self) -> int:
        """Bytes of an element of the shards: torch's optimizers make states like them (``zeros_like``)."""
        return self.master_bytes

    @property
    def divides_weights(self) -> bool:
        """True: ranks hold shards between steps, also where forward leaves weights gathered."""
        return True

    @property
    def divides_gradients(self) -> bool:
        """True: backward reduces and scatters them."""
        return True

    @property
    def divides_states(self) -> bool:
        """True: the optimizer sees shards."""
        return True

    @property
    def optimizer_device(self) -> str:
        """The CPU under ``CPUOffloadPolicy``, where the optimizer sees shards of the CPU."""
        return "cpu" if self.offload else "none"

    @property
    def weights_device(self) -> str:
        """The CPU under ``CPUOffloadPolicy``."""
        return "cpu" if self.offload else "none"

    @property
    def autocasts(self) -> bool:
        """False: weights are gathered in 16 bits."""
        return False

    @property
    def has_own_linear(self) -> bool:
        """False: modules stay torch's."""
        return False

    @property
    def has_own_group(self) -> bool:
        """True with replicas: without a mesh all ranks of the default group share
        (torch/distributed/fsdp/_fully_shard/_fsdp_init.py, ``_init_default_mesh``, 2.13)."""
        return self.replicas > 1

    def communicators(self, shared: int) -> int:
        """One of ranks that share a replica; with replicas, of those that hold the same shard, too; and of
        those that share a sequence."""
        return 1 + (self.replicas > 1) + (shared > 1)


def fsdp2(settings: TrainingSettings) -> Fsdp2Settings:
    """The settings as FSDP2's, for what is true of FSDP2 alone. Raises TypeError: they are another
    engine's."""
    if not isinstance(settings, Fsdp2Settings):
        raise TypeError(f"settings of {settings.engine}, not of FSDP2")
    return settings
