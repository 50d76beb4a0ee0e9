"""Packages of compiled kernels that the run has and this machine lacks: made up where the run asks for them.

Libraries choose their code by what is installed, so flash-attn is offered only to a run that names it:
``flash_attention_2`` among the arguments, in a file that they name or in the script, or an import without
which the script would end. Triton comes with PyTorch's CUDA builds: a run on GPUs has it.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import linecache
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from zerokit.rehearsal.order import Order, Script
from zerokit.rehearsal.process.endings import NotRehearsed

FLASH_ATTENTION_VERSION, TRITON_VERSION = "2.8.3", "3.9.0+zerokit"
NOT_STOOD_IN = {
    "apex": "apex",
    "transformer_engine": "Transformer Engine",
    "mamba_ssm": "Mamba's kernels",
    "causal_conv1d": "causal-conv1d",
    "fla": "flash-linear-attention",
    "xformers": "xFormers",
    "flash_attn": "flash-attn",
}
"""Packages of kernels by the module that is imported, which code takes where they are installed."""
_KERNELS = "_flash_attn_forward _flash_attn_varlen_forward _flash_attn_backward _flash_attn_varlen_backward"
_CALLS = (
    "flash_attn_func flash_attn_kvpacked_func flash_attn_qkvpacked_func flash_attn_varlen_func "
    "flash_attn_varlen_kvpacked_func flash_attn_varlen_qkvpacked_func flash_attn_with_kvcache"
)
FLASH_ATTENTION = {
    "": _CALLS,
    "flash_attn_interface": f"{_CALLS} {_KERNELS} FlashAttnFunc FlashAttnVarlenFunc FlashAttnKVPackedFunc "
    "FlashAttnQKVPackedFunc FlashAttnVarlenKVPackedFunc FlashAttnVarlenQKVPackedFunc",
    "bert_padding": "index_first_axis index_put_first_axis index_first_axis_residual unpad_input "
    "unpad_input_for_concatenated_sequences pad_input rearrange repeat IndexFirstAxis IndexPutFirstAxis",
    "utils": "",
    "utils.distributed": "all_gather_raw reduce_scatter_raw all_reduce_raw AllGatherFunc all_gather "
    "ReduceScatterFunc reduce_scatter AllReduceFunc all_reduce sync_shared_params "
    "allreduce_sequence_parallel_grad get_dim_for_local_rank",
    "utils.generation": "InferenceParams GenerationMixin decode sample update_graph_cache",
    "utils.pretrained": "state_dict_from_pretrained",
    "utils.torch": "custom_amp_decorator custom_fwd custom_bwd",
    "layers": "",
    "layers.patch_embed": "PatchEmbed",
    "layers.rotary": "ApplyRotaryEmb apply_rotary_emb apply_rotary_emb_func apply_rotary_emb_torch "
    "apply_rotary_emb_qkv_ apply_rotary_emb_kv_ rotate_half RotaryEmbedding",
    "losses": "",
    "losses.cross_entropy": "CrossEntropyLoss",
    "ops": "",
    "ops.activations": "bias_gelu_impl fast_gelu_impl sqrelu_fwd sqrelu_bwd swiglu SwiGLUFunction",
    "ops.fused_dense": "fused_dense_func FusedDense fused_mlp_func FusedMLP ColumnParallelLinear "
    "RowParallelLinear ParallelFusedMLP",
    "ops.layer_norm": "layer_norm dropout_add_layer_norm dropout_add_layer_norm_subset "
    "dropout_add_layer_norm_parallel_residual DropoutAddLayerNorm",
    "ops.rms_norm": "rms_norm dropout_add_rms_norm dropout_add_rms_norm_subset RMSNorm DropoutAddRMSNorm",
    "ops.triton": "",
    "ops.triton.cross_entropy": "cross_entropy_loss",
    "ops.triton.layer_norm": "layer_norm_fn rms_norm_fn layer_norm_linear_fn RMSNorm LayerNormFn",
    "ops.triton.linear": "triton_linear_act triton_dgrad_act",
    "ops.triton.mlp": "fused_dense_sqrelu_dense_function FusedDenseSqreluDense",
    "ops.triton.rotary": "apply_rotary",
    "modules": "",
    "modules.block": "Block ParallelBlock",
    "modules.embedding": "GPT2Embeddings BertEmbeddings ParallelGPT2Embeddings VocabParallelEmbedding "
    "ColumnParallelEmbedding",
    "modules.mha": "get_alibi_slopes FlashSelfAttention FlashCrossAttention SelfAttention CrossAttention "
    "MHA ParallelMHA",
    "modules.mlp": "Mlp ParallelMLP GatedMlp ParallelGatedMlp",
    "models": "",
    **dict.fromkeys(
        (f"models.{name}" for name in ("bert", "gpt", "llama", "falcon", "gpt_neox", "opt")), "*"
    ),
}
"""The modules of flash-attn 2.8.3, and their public names; of models any."""
TRITON = {
    "": "KernelInterface JITFunction jit Config autotune heuristics constexpr_function cdiv next_power_of_2 "
    "set_allocator OutOfResources language runtime",
    "runtime": "KernelInterface JITFunction Config Autotuner Heuristics autotune heuristics OutOfResources "
    "autotuner jit",
    "runtime.jit": "KernelInterface JITFunction jit constexpr_function",
    "runtime.autotuner": "Config Autotuner Heuristics autotune heuristics OutOfResources",
    "language": "constexpr core math standard extra *",
    "language.core": "constexpr *",
    **dict.fromkeys(("language.math", "language.standard", "language.extra.libdevice"), "*"),
    "language.extra": "libdevice cuda",
    "language.extra.cuda": "libdevice *",
    "language.extra.cuda.libdevice": "*",
}
"""Those of Triton 3.9.0 that kernels' authors use, without what compiles."""
_MODULES = {"flash_attn": FLASH_ATTENTION, "triton": TRITON}
_VERSIONS = {"flash_attn": FLASH_ATTENTION_VERSION, "triton": TRITON_VERSION}
_ASK_WITHOUT_USE = {"deepspeed"}
"""Import apex wherever it is, and use it only where a configuration says ``amp``."""
_ASKS = re.compile(
    r"flash_attention_2|^(?:from|import) flash_attn\b|^\s*flash_attention: *true\b|^\s*flash_attn: *fa2\b",
    re.MULTILINE,
)
"""The last two: axolotl's and LLaMA-Factory's files."""
_MOST_BYTES = 1 << 20
_OURS = str(Path(__file__).resolve().parents[2])
_READ = (".json", ".yaml", ".yml", ".toml", ".sh")


def offer(script: Script) -> list[str]:
    """Put stand-ins where imports find them, after all that is installed.

    Returns:
        What they are, to be told.
    """
    folder = Path(script.folder, "stand-ins")
    if importlib.util.find_spec("triton") is None:
        from torch.utils._triton import has_triton_package

        has_triton_package()  # kept: PyTorch compiles with the real one
        sys.meta_path.insert(0, _WithoutTriton())
        stand_in(folder, "triton")
        shutil.copyfile(Path(__file__).with_name("triton_python.py"), folder / "triton" / "python.py")
    if not asks_for_flash_attention(script) or importlib.util.find_spec("flash_attn") is not None:
        return []
    return [stand_in(folder, "flash_attn")]


def stand_in(folder: Path, root: str) -> str:
    """Put a package where imports find it; what it is, in words."""
    modules, version, title = _MODULES[root], _VERSIONS[root], root.replace("_", "-")
    package, about = folder / root, folder / f"{root}-{version}.dist-info"
    for name in modules:
        path = package.joinpath(*name.split("."))
        is_package = not name or any(other.startswith(f"{name}.") for other in modules)
        file = path / "__init__.py" if is_package else path.with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            f"from {__name__} import contents\n"
            f'__version__ = "{version}"\nglobals().update(contents({root!r}, {name!r}))\n'
        )
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {title}\nVersion: {version}\n")
    (about / "top_level.txt").write_text(f"{root}\n")
    (about / "RECORD").write_text(f"{root}/__init__.py,,\n")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    importlib.invalidate_caches()
    return f"{title}, which is not installed here: as version {version}"


def contents(root: str, module: str) -> dict[str, Any]:
    """What a module of a package holds: ours by their names, its own modules, and in place of each other name
    what ends a rehearsal that uses it."""
    if root == "triton":
        ours = {**vars(importlib.import_module("triton.python"))}
        absent = ours["InKernels"]
    else:
        from zerokit.rehearsal.process import flash_attention, flash_attn_python

        ours = {**vars(flash_attention), **vars(flash_attn_python)}
        absent = functools.partial(_absent, module)
        with contextlib.suppress(ImportError):  # flash-attn requires it
            import einops

            ours |= {"rearrange": einops.rearrange, "repeat": einops.repeat}
    held: dict[str, Any] = {}
    for name in _MODULES[root][module].split():
        inner = f"{module}.{name}".lstrip(".")
        if name == "*":
            held["__getattr__"] = absent
        elif inner in _MODULES[root]:
            held[name] = importlib.import_module(f"{root}.{inner}")
        else:
            held[name] = ours[name] if name in ours else absent(name)
    return held


class _WithoutTriton:
    """The first meta path finder, of the module by which Inductor asks for Triton, and where it is there for
    its compiler (torch/_inductor/runtime/triton_compat.py:9)."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "torch._inductor.runtime.triton_compat":
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _LoaderWithoutTriton(fullname, spec.origin)
        return spec


class _LoaderWithoutTriton(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        kept = {"triton": sys.modules.pop("triton")} if "triton" in sys.modules else {}
        sys.modules["triton"] = None  # type: ignore[assignment]
        try:
            super().exec_module(module)
        finally:
            del sys.modules["triton"]
            sys.modules.update(kept)


def _absent(module: str, name: str) -> Any:
    """A class, which may be imported and derived from, and not made."""
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*args: Any, **kwargs: Any) -> Any:
        reason = f"the stand-in for flash-attn {FLASH_ATTENTION_VERSION} has no {name}"
        raise NotRehearsed(f"flash_attn.{module}.{name}", reason)

    return type(name, (), {"__new__": refuse, "apply": staticmethod(refuse)})


_SPARSE = re.compile(r"aten[.:]+_?\w*(to_sparse|sparse_(csr|csc|bsr|bsc|compressed)_tensor|to_dense)")


class Missing:
    """A meta path finder, the last one: what is imported, and not found, of :data:`NOT_STOOD_IN`.

    A look-up (``importlib.util.find_spec``) is no import.

    Args:
        stand_in: puts a package where imports find it, and gives the folder; for flash-attn.
    """

    def __init__(self, warn: Callable[[str], None], stand_in: Callable[[], Path] | None = None) -> None:
        self._warn, self._stand_in = warn, stand_in

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The stand-in of what a script cannot do without; else nothing: tells what is missing."""
        name = NOT_STOOD_IN.get(fullname)
        is_standing_in = getattr(sys.modules.get("triton"), "__version__", None) == TRITON_VERSION
        if is_standing_in and fullname.startswith("triton."):
            name = fullname  # a module that it lacks
        importer = _importer() if name is not None else None
        if importer is None or importer in _ASK_WITHOUT_USE:
            return None
        if fullname == "flash_attn" and self._stand_in is not None and not _is_guarded(sys._getframe(1)):
            return PathFinder.find_spec(fullname, [str(self._stand_in())])
        self._warn(missing(str(name)))
        return None


def missing(name: str) -> str:
    """What is said of a package that is imported, and that the script does without."""
    return (
        f"{name} is imported and not installed here: where the run has it, it may take other code and "
        "allocate otherwise"
    )


def _is_guarded(frame: FrameType | None) -> bool:
    """Whether an import that fails is caught on its way up, by a handler that raises nothing: the code does
    without the package then."""
    while frame is not None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if not file.startswith(("<", _OURS)) and any(
            (isinstance(node, ast.Try) and _is_in(node.body, line) and any(map(_goes_on, node.handlers)))
            or (
                isinstance(node, ast.With)
                and _is_in(node.body, line)
                and "suppress(" in ast.unparse(node.items[0])
            )
            for node in ast.walk(_tree(file))
        ):
            return True
        frame = frame.f_back
    return False


@functools.cache
def _tree(file: str) -> ast.AST:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ast.Module([], [])


def _is_in(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or 0)


def _goes_on(handler: ast.ExceptHandler) -> bool:
    caught = "Exception" if handler.type is None else ast.unparse(handler.type)
    names = re.split(r"\W+", caught)
    return not {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}.isdisjoint(
        names
    ) and not any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def _importer() -> str | None:
    """The package whose import statement asks the finders; None where it is a look-up: behind ``_find_spec``
    stands what asked."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "_find_and_load_unlocked":
        if frame.f_globals.get("__name__") != "importlib._bootstrap":
            return None
        frame = frame.f_back
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("importlib"):
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals.get("__name__")).partition(".")[0]


def explain(error: BaseException) -> str:
    """What is to be said of an error that ended the script: an import without a stand-in, a sparse tensor."""
    if _SPARSE.search(str(error)) and not isinstance(error, ModuleNotFoundError):
        return (
            "; of sparse tensors only those of coordinates (COO) are modelled: where the script has an "
            "option for dense ones, rehearse it with that"
        )
    root = (getattr(error, "name", None) or "").partition(".")[0]
    if not isinstance(error, ImportError) or root not in NOT_STOOD_IN:
        return ""
    if getattr(sys.modules.get(root), "__version__", None) == FLASH_ATTENTION_VERSION:
        return f"; the stand-in for {NOT_STOOD_IN[root]} {FLASH_ATTENTION_VERSION} has no such name"
    return (
        f"; nothing stands in for {NOT_STOOD_IN[root]} in a rehearsal: where the script has an option for "
        "PyTorch's own kernels, rehearse it with that"
    )


def asks_for_flash_attention(order: Order | Script) -> bool:
    """Whether the run has flash-attn, as far as the arguments and the script say."""
    named = [Path(part) for argument in order.arguments for part in argument.rpartition("=")[::2] if part]
    # os.path: a text that is too long for a name is no folder, where pathlib raises
    files = [path / "config.json" if os.path.isdir(path) else path for path in named]  # noqa: PTH112
    texts = [*order.arguments, *(_text(file) for file in files if file.suffix in _READ)]
    if not order.is_module:
        texts.append(_text(Path(order.target)))
    return any(_ASKS.search(text) for text in texts)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace") if path.stat().st_size <= _MOST_BYTES else ""
    except OSError:
        return ""
