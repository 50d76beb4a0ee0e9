"""What a Trainer's script does besides what a plan decides, said before the run."""

from __future__ import annotations

from zerokit.script.arguments import ScriptOptions
from zerokit.script.option_values import truth

_WITH_A_REFERENCE = ("DPOTrainer", "KTOTrainer", "BCOTrainer", "OnlineDPOTrainer", "NashMDTrainer",
                     "XPOTrainer", "PPOTrainer", "GKDTrainer")  # fmt: skip
_GENERATE = ("GRPOTrainer", "RLOOTrainer", "OnlineDPOTrainer", "NashMDTrainer", "XPOTrainer", "PPOTrainer")


def trains_adapters(options: ScriptOptions) -> bool:
    """Whether the user asked a script of TRL's for adapters."""
    adapters = options.given("use_peft")
    return adapters is not None and truth(adapters[0]) is True


def warnings(options: ScriptOptions, method: str, *, by_options: bool = True) -> list[str]:
    """Where the script's job is another than the plan's.

    Args:
        options: of the script.
        method: what the plan trains: ``full``, ``lora`` or ``qlora``.
        by_options: say which option plans for it, as no command is named that plans with the script.
    """
    if options.style != "trainer":
        return []
    result = []
    if method == "full" and trains_adapters(options):
        result.append(
            "warning: --use_peft trains adapters, and the plan trains all weights: the run takes less than "
            f"predicted{'; plan again with ⟨method⟩ lora' if by_options else ''}"
        )
    bits = options.given("load_in_4bit")
    if method != "qlora" and bits is not None and truth(bits[0]) is True:
        result.append(
            "warning: --load_in_4bit holds the weights in 4 bits, and the plan does not"
            f"{'; plan again with ⟨method⟩ qlora' if by_options else ''}"
        )
    reference = next((name for name in _WITH_A_REFERENCE if name in options.facts.mentions), None)
    if reference is not None and not trains_adapters(options):
        result.append(
            f"warning: {reference} may hold a reference or another model beside the one that trains, which "
            "the plan does not count: it may take more memory than predicted"
        )
    generating = next((name for name in _GENERATE if name in options.facts.mentions), None)
    if generating is not None:
        result.append(f"warning: {generating} generates between its steps, which the plan does not predict")
    return result
