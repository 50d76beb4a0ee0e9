"""What the libraries of a training script ask of a GPU, beyond tensors: one module each.

The rule: fake the inputs (files, device, kernels, other ranks), never a library's own functions. An adapter
is a function that gets the library's module right after it was imported.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from zerokit.instrument.phases import within
from zerokit.rehearsal.process.adapters import (
    data_loaders,
    deepspeed,
    generation,
    kernels,
    saving,
    training,
    transformers,
)
from zerokit.rehearsal.process.phases import Context

Adapter = Callable[[Context, ModuleType], None]


def _gathering(owner: str, *names: str) -> Adapter:
    """What these methods allocate are whole parameters, gathered from all ranks."""

    def adapt(context: Context, module: ModuleType) -> None:
        for name in names:
            within(getattr(module, owner), name, context.machine.ledger.gathering)

    return adapt


ADAPTERS: dict[str, Adapter] = {
    "accelerate.local_sgd": training.local_sgd,
    "accelerate.utils.deepspeed": lambda context, module: deepspeed.configuration(  # a Trainer's, too
        context, module.HfDeepSpeedConfig
    ),
    "accelerate.utils.modeling": training.placement,
    "bitsandbytes.cextension": kernels.native_library,
    "bitsandbytes.functional": kernels.managed_memory,
    "datasets.arrow_dataset": data_loaders.preparation,
    "datasets.arrow_writer": data_loaders.prepared_data,
    "deepspeed.compile.backend": deepspeed.compiler,
    "deepspeed.ops.op_builder.builder": deepspeed.operators,
    "deepspeed.runtime.config": lambda context, module: deepspeed.configuration(
        context, module.DeepSpeedConfig
    ),
    "deepspeed.runtime.engine": deepspeed.engine,
    "deepspeed.runtime.pipe.engine": deepspeed.pipeline,
    "deepspeed.runtime.pipe.topology": deepspeed.stages,
    # what a module needs, and what comes next
    "deepspeed.runtime.zero.partitioned_param_coordinator": _gathering(
        "PartitionedParameterCoordinator", "fetch_sub_module"
    ),
    "deepspeed.runtime.zero.stage_1_and_2": deepspeed.flattening,
    "deepspeed.runtime.zero.utils": deepspeed.agreement,
    "deepspeed.sequence.cross_entropy": deepspeed.vocabulary,
    "diffusers.schedulers.scheduling_utils": generation.sampling,
    "huggingface_hub.hf_api": saving.writing,
    "peft.peft_model": transformers.adapter_loading,
    "safetensors.torch": saving.safetensors,
    "torch.distributed.checkpoint.default_planner": saving.sharded_plan,
    "torch.distributed.checkpoint.filesystem": saving.sharded_files,
    "torch.distributed.checkpoint.utils": saving.sharded,
    # FSDP 1 gathers a unit in one flat parameter, FSDP 2 in a buffer, from which it copies them
    "torch.distributed.fsdp._flat_param": _gathering("FlatParamHandle", "pre_unshard", "unshard"),
    "torch.distributed.fsdp._fully_shard._fsdp_param_group": _gathering(
        "FSDPParamGroup", "unshard", "wait_for_unshard"
    ),
    "torchvision.extension": kernels.torchvision,
    "transformers.generation.utils": generation.generate,
    "transformers.modeling_utils": transformers.loading,
    "transformers.trainer": training.trainer,
    "transformers.trainer_callback": training.callbacks,
    "transformers.utils.import_utils": transformers.questions,
    "triton.runtime.autotuner": kernels.triton_autotuner,
    "triton.runtime.jit": kernels.triton_functions,
}
"""By the module after whose import they act."""
