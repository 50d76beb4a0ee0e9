"""The batch that a script's own data loader gives, which is what trains where the script feeds its engine."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerokit.domain import planning_again
from zerokit.script.arguments import SPELLINGS, ScriptOptions
from zerokit.script.code_settings import CodeSetting, training_batches
from zerokit.script.option_values import number
from zerokit.script.reader import ScriptFacts

_SIZED_OTHERWISE = frozenset({"split_batches", "batch_sampler", "find_executable_batch_size"})
_PLANS_OPTIONS = frozenset(
    f"--{name.replace('_', dash)}" for name in SPELLINGS["per_device_train_batch_size"] for dash in "_-"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderBatch:
    """Sequences that a rank gets at a time, where that stands, and the script's option for it, if any."""

    sequences: int
    location: str
    option: str | None = None

    def unlike(self, plan: PlannedBatch, *, by_options: bool, is_judged: bool) -> str | None:
        """What to say under a plan of another batch; None: it is the same.

        Args:
            by_options: say what plans for it, as no command is named that plans with the script.
            is_judged: a run that is not as planned ends so.
        """
        planned = plan.micro_batch
        if self.sequences == planned:
            return None
        again = ""
        if by_options and not plan.rehearsed:
            again = f", or plan again: {plan.command_for({'micro-batch': str(self.sequences)})}"
        fix = f"give {self.option} {planned}" if self.option else "change the script"
        ends = ", and ends with exit code 9 unless ⟨accept_mismatch=True⟩" if is_judged else ""
        return (
            f"{self.location} gives each rank {self.sequences} at a time, and the plan has micro-batch "
            f"{planned}: the run is not the one predicted{ends}; {fix}{again}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBatch:
    """What a plan says of the batch.

    Attributes:
        chosen: the plan's choice. request: what it was planned from.
        folder: of the plan; None: none that lasts.
    """

    chosen: Mapping[str, Any]
    request: Mapping[str, Any]
    folder: Path | None

    @property
    def micro_batch(self) -> int:
        """Sequences per GPU and forward pass."""
        return int(self.chosen["micro_batch"])

    @property
    def rehearsed(self) -> bool:
        """Whether the plan was made with a script."""
        return isinstance(self.chosen.get("rehearsed"), Mapping)

    def command_for(self, ran: Mapping[str, str]) -> str:
        """Plans with other values of these options, into the same folder if it lasts."""
        recipe = None if self.folder is None else self.folder / "plan.yaml"
        options = planning_again.options_for(self.chosen, self.request, ran)
        return shlex.join(
            planning_again.command_words(self.request, recipe=recipe, out=self.folder, options=options)
        )


def before_the_run(
    options: ScriptOptions, plan: PlannedBatch, *, by_options: bool = True, is_judged: bool = True
) -> list[str]:
    """What to say of the batch that will train under a plan, as :meth:`LoaderBatch.unlike`."""
    planned = plan.micro_batch
    loaded = loader_batch(options)
    if loaded is not None:
        unlike = loaded.unlike(plan, by_options=by_options, is_judged=is_judged)
        return [] if unlike is None else [f"warning: {unlike}"]
    facts = options.facts
    if (
        plan.rehearsed
        or options.style != "accelerate"
        or not any(_loaders(facts))
        or _PLANS_OPTIONS & facts.options
    ):
        return []
    another = "only the run tells: another size ends with exit code 9"
    return [
        f"the plan has micro-batch {planned}; what the script's data loader gives each rank is computed, so "
        f"{another if is_judged else 'see that it gives as many, or the run is not the one predicted'}"
    ]


def _loaders(facts: ScriptFacts) -> Iterator[CodeSetting]:
    return (setting for setting in facts.code_settings if setting.call.endswith("DataLoader"))


def loader_batch(options: ScriptOptions) -> LoaderBatch | None:
    """What the training's data loader is given in the source; None: not known, or a plan decides it.

    Only of scripts that feed their engine themselves. Where the loaders of a source differ, or one takes a
    size that is computed, only the run tells.
    """
    facts = options.facts
    feeds_itself = options.style == "accelerate" or (options.style == "raw" and not facts.reads_micro_batch)
    if not feeds_itself or _SIZED_OTHERWISE & (facts.mentions | facts.keywords):
        return None
    batches = {_batch(setting, options) for setting in training_batches(facts.code_settings)}
    sizes = {batch.sequences if batch is not None else None for batch in batches}
    return next(iter(batches)) if len(sizes) == 1 else None


def _batch(setting: CodeSetting, options: ScriptOptions) -> LoaderBatch | None:
    if setting.option in _PLANS_OPTIONS:
        return None  # filled in from the plan, and held to it
    given = options.given(setting.option.removeprefix("--")) if setting.option else None
    sequences = number(given[0] if given is not None else setting.value)
    if sequences is None:
        return None
    call = f"{setting.path}:{setting.line}: {setting.call}(batch_size={sequences})"
    if given is not None:
        return LoaderBatch(sequences=sequences, location=f"{given[1]} ({call})", option=setting.option)
    default = f", the default of {setting.option}" if setting.option else ""
    return LoaderBatch(sequences=sequences, location=f"{call}{default}", option=setting.option)
