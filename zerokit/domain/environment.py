"""The environment variables that a plan may set, and what may stand in them: one list for every command.

A plan is a file that people pass on. So it may set what tunes the libraries of a training run, and nothing
that loads code (``LD_PRELOAD``, ``NCCL_NET_PLUGIN``, ``CUDA_INJECTION64_PATH``), writes files
(``NCCL_DEBUG_FILE``, ``TORCH_LOGS_OUT``), or says where programs are found (``PATH``, ``CUDA_HOME``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

OF_A_SESSION = re.compile(
    r"_|SHLVL|OLDPWD|PWD|COLUMNS|LINES|TERM.*|COLORTERM|SSH_.*|TMUX.*|STY|WINDOWID|DISPLAY|WAYLAND_.*|"
    r"XAUTHORITY|XDG_SESSION_.*|XDG_RUNTIME_DIR|DBUS_.*|PS[1-4]|PROMPT.*|LS_COLORS|HIST.*|INVOCATION_ID|JOURNAL_STREAM|"
    r"VSCODE_.*|PYTEST_.*|PYTHONDONTWRITEBYTECODE|PYTHONPYCACHEPREFIX|NO_COLOR|FORCE_COLOR"
)
"""Variables that differ from terminal to terminal, and that no script computes with."""

_NAMES = """
PYTORCH_ALLOC_CONF PYTORCH_CUDA_ALLOC_CONF PYTORCH_HIP_ALLOC_CONF
TORCH_ALLOW_TF32_CUBLAS_OVERRIDE TORCH_CPP_LOG_LEVEL TORCH_DISTRIBUTED_DEBUG
TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_AVOID_RECORD_STREAMS TORCH_NCCL_BLOCKING_WAIT
TORCH_NCCL_CUDA_EVENT_CACHE TORCH_NCCL_ENABLE_MONITORING TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC
TORCH_NCCL_HIGH_PRIORITY TORCH_NCCL_USE_COMM_NONBLOCKING
NCCL_ALGO NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_BUFFSIZE NCCL_CGA_CLUSTER_SIZE
NCCL_COLLNET_ENABLE NCCL_CROSS_NIC NCCL_CTA_POLICY NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE NCCL_DEBUG
NCCL_DEBUG_SUBSYS NCCL_DMABUF_ENABLE NCCL_GRAPH_MIXING_SUPPORT NCCL_GRAPH_REGISTER
NCCL_IB_ADAPTIVE_ROUTING NCCL_IB_CUDA_SUPPORT NCCL_IB_DISABLE NCCL_IB_GID_INDEX NCCL_IB_HCA
NCCL_IB_MERGE_NICS NCCL_IB_PCI_RELAXED_ORDERING NCCL_IB_QPS_PER_CONNECTION NCCL_IB_RETRY_CNT NCCL_IB_SL
NCCL_IB_SPLIT_DATA_ON_QPS NCCL_IB_TC NCCL_IB_TIMEOUT NCCL_IGNORE_CPU_AFFINITY NCCL_LAUNCH_MODE
NCCL_LOCAL_REGISTER NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MIN_NCHANNELS NCCL_MNNVL_ENABLE
NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ NCCL_NSOCKS_PERTHREAD NCCL_NTHREADS NCCL_NVB_DISABLE
NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_PROTO NCCL_PXN_DISABLE NCCL_SHM_DISABLE
NCCL_SOCKET_FAMILY NCCL_SOCKET_IFNAME NCCL_SOCKET_NTHREADS
RCCL_MSCCL_ENABLE RCCL_MSCCLPP_ENABLE GLOO_SOCKET_IFNAME UCX_NET_DEVICES UCX_TLS
OMP_DYNAMIC OMP_NUM_THREADS OMP_PLACES OMP_PROC_BIND OMP_SCHEDULE OMP_WAIT_POLICY MKL_DYNAMIC
MKL_NUM_THREADS
CUBLAS_WORKSPACE_CONFIG CUDA_DEVICE_MAX_CONNECTIONS CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING
CUDA_MODULE_LOADING CUDA_SCALE_LAUNCH_QUEUES
TOKENIZERS_PARALLELISM ACCELERATE_USE_PARALLELISM_CONFIG ZEROKIT_PIPELINE_STAGES
"""
_ALLOWED = frozenset(_NAMES.split())
_PARALLELISM = re.compile(r"PARALLELISM_CONFIG_[A-Z0-9_]{1,64}")  # Accelerate's degrees
# No shell, template or log reads any of these as more than itself.
_VALUE = re.compile(r"[A-Za-z0-9_@+=:,./^~\[\] -]{0,4096}")


def may_set(name: str) -> bool:
    """Whether a plan may set the variable."""
    return name in _ALLOWED or _PARALLELISM.fullmatch(name) is not None


def problem_of(name: object, value: object) -> str | None:
    """What is wrong with a variable of ``chosen.environment``; None when nothing is."""
    if not isinstance(name, str) or not may_set(name):
        return (
            f"{name!s:.80}: a plan may not set this variable; if you want it, set it in the shell that "
            "starts the run"
        )
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return f"{name}: {value!r:.60} is neither text nor a number"
    if not _VALUE.fullmatch(str(value)) or str(value) != str(value).strip():
        return (
            f"{name}: {str(value)[:60]!r} holds what a shell could read as more than a value; use letters, "
            "digits, blanks and _ @ + = : , . / ^ ~ [ ] -"
        )
    return None


def as_text(environment: Mapping[str, object]) -> dict[str, str]:
    """The variables of a plan that was checked, as a process takes them."""
    return {name: str(value) for name, value in environment.items()}
