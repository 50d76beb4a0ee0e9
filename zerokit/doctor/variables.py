"""Environment variables that change what NCCL, torch or DeepSpeed do: a table, one row each."""

from __future__ import annotations

from dataclasses import dataclass

from zerokit.machine import architectures


@dataclass(frozen=True, slots=True, kw_only=True)
class Oddity:
    """A variable worth a remark.

    Attributes:
        value: a pattern that the whole value must match for the remark to hold.
    """

    name: str
    what: str
    fix: str
    value: str = ".+"
    state: str = "warning"


_UNSET = "unset it"
ODDITIES = (
    Oddity(
        name="NCCL_P2P_DISABLE",
        value="1",
        what="GPUs exchange through host memory, many times slower",
        fix=_UNSET,
    ),
    Oddity(name="NCCL_P2P_LEVEL", value="LOC|0", what="GPUs exchange through host memory", fix=_UNSET),
    Oddity(
        name="NCCL_IB_DISABLE", value="1", what="nodes talk over plain sockets, not InfiniBand", fix=_UNSET
    ),
    Oddity(
        name="NCCL_SHM_DISABLE",
        value="1",
        what="ranks of a node without peer access use sockets",
        fix=_UNSET,
    ),
    Oddity(
        name="NCCL_NET_GDR_LEVEL",
        value="LOC|0",
        what="network traffic is copied through the host",
        fix=_UNSET,
    ),
    Oddity(name="NCCL_ALGO", what="NCCL may not choose its algorithm", fix=_UNSET, state="note"),
    Oddity(name="NCCL_PROTO", what="NCCL may not choose its protocol", fix=_UNSET, state="note"),
    Oddity(
        name="NCCL_DEBUG",
        value="TRACE|INFO",
        what="NCCL writes much into the log",
        fix="set it to WARN",
        state="note",
    ),
    Oddity(
        name="NCCL_BLOCKING_WAIT",
        what="an old name, which torch reads with a warning",
        fix="use TORCH_NCCL_BLOCKING_WAIT",
        state="note",
    ),
    Oddity(
        name="NCCL_ASYNC_ERROR_HANDLING",
        what="an old name, which torch reads with a warning",
        fix="use TORCH_NCCL_ASYNC_ERROR_HANDLING",
        state="note",
    ),
    Oddity(
        name="TORCH_NCCL_BLOCKING_WAIT", value="1", what="every collective blocks the host: slow", fix=_UNSET
    ),
    Oddity(
        name="CUDA_LAUNCH_BLOCKING",
        value="1",
        what="every kernel waits for the one before: slow",
        fix=_UNSET,
    ),
    Oddity(
        name="CUDA_VISIBLE_DEVICES",
        value=".*(GPU|MIG)-.*",
        what="plain `deepspeed` crashes on UUIDs",
        fix="use `zerokit launch`, which resolves them, or indices",
    ),
    Oddity(
        name="RANK", what="set in this shell: without a launcher a script takes itself for it", fix=_UNSET
    ),
    Oddity(
        name="WORLD_SIZE",
        what="set in this shell: without a launcher a script waits for the others",
        fix=_UNSET,
    ),
    Oddity(
        name="LOCAL_RANK", what="set in this shell: without a launcher a script uses that GPU", fix=_UNSET
    ),
    Oddity(
        name="MASTER_ADDR",
        what="set in this shell: ranks will meet there",
        fix="unset it, unless meant",
        state="note",
    ),
    Oddity(
        name="MASTER_PORT",
        what="set in this shell: ranks will meet there",
        fix="unset it, unless meant",
        state="note",
    ),
    Oddity(
        name="ACCELERATE_USE_DEEPSPEED",
        what="every accelerate script in this shell uses DeepSpeed",
        fix=_UNSET,
    ),
    Oddity(
        name="ACCELERATE_DEEPSPEED_CONFIG_FILE",
        what="every accelerate script in this shell uses that file",
        fix=_UNSET,
    ),
    Oddity(
        name="DS_ACCELERATOR",
        what="DeepSpeed takes this accelerator instead of looking",
        fix="unset it, unless meant",
        state="note",
    ),
    Oddity(
        name="DS_SKIP_CUDA_CHECK",
        value="1",
        what="operators are compiled with a toolkit that may not fit torch's",
        fix="unset it, unless meant",
        state="note",
    ),
    Oddity(
        name=architectures.VARIABLE,
        value=architectures.UNREADABLE,
        what="DeepSpeed reads only numbers such as 9.0 here, and fails at the first operator that it loads",
        fix="write 9.0 for 9.0a or Hopper; `zerokit launch` gives its ranks the numbers",
    ),
    Oddity(
        name="SLURM_JOB_ID",
        what="inside a Slurm job; DeepSpeed's own Slurm launcher sets no RANK",
        fix="use the job script that `zerokit emit sbatch` writes: srun with torchrun",
        state="note",
    ),
    Oddity(
        name="DS_ENV_FILE",
        what="DeepSpeed reads another file than .deepspeed_env",
        fix="unset it, unless meant",
        state="note",
    ),
    Oddity(
        name="OMP_NUM_THREADS",
        value="1",
        what="CPU Adam of an offloaded optimizer runs on one core",
        fix="set it to the cores per rank when offloading",
        state="note",
    ),
    Oddity(
        name="PYTORCH_NO_CUDA_MEMORY_CACHING",
        what="every allocation goes to the driver: very slow",
        fix=_UNSET,
    ),
    Oddity(
        name="PYTORCH_CUDA_ALLOC_CONF",
        what="changes how much memory is reserved beyond what is allocated",
        fix="plans assume what they print under `environment`",
        state="note",
    ),
    Oddity(
        name="PYTORCH_ALLOC_CONF",
        what="changes how much memory is reserved beyond what is allocated",
        fix="plans assume what they print under `environment`",
        state="note",
    ),
)
