"""A request with what a script decides, which is no longer to be chosen: its batch, checkpointing and
precision."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from zerokit.domain.settings import Stated, unlike_script
from zerokit.notes import Note
from zerokit.search.plan import Plan
from zerokit.search.space import Request

_BATCH = ("micro_batch", "gradient_accumulation")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFor:
    """What is to be planned for one script. ``request``: with what the script decides, and a note for each.
    ``decided``: the same as options of ``plan``."""

    request: Request
    decided: dict[str, str]

    @classmethod
    def of(
        cls, requested: Request, stated: Iterable[Stated], rehearsed: Collection[str] = (), *,
        search_tensor: bool = False,
    ) -> PlannedFor:  # fmt: skip
        """Of what the user asks for and what the script leaves open.

        Args:
            stated: what the script decides.
            rehearsed: fields of the request's pins that the script's own rehearsal decided.
            search_tensor: the script feeds the peers of a tensor parallel group alike.

        Raises:
            InputError: the user asks for something else than the script does.
        """
        request, decided = requested, dict[str, str]()
        if search_tensor:
            request = replace(request, pins=replace(request.pins, search_tensor=True))
        for one in stated:
            name = one.setting.argument
            asked = request.precision if name == "precision" else getattr(request.pins, name)
            if asked in (None, "auto"):
                why = "the script decides it" if name in _BATCH else one.where
                why = f"{one.setting.option.removeprefix('gradient-')} {one.value}: {why}"
                changed: dict[str, Any] = {name: one.value}
                if name != "precision":
                    changed = {"pins": replace(request.pins, **changed)}
                decided[one.setting.option] = str(one.value)
                request = replace(
                    request, assumptions=(*request.assumptions, Note("by-script", why)), **changed
                )
            elif asked != one.value and name not in rehearsed and name != "checkpointing":
                why = f"the script has {one.value} ({one.where})"
                raise unlike_script(name, asked, why, f"change the script to {asked}")
        return cls(request=request, decided=decided)

    def with_own_reasons(self, plan: Plan) -> Plan:
        """A plan of the request without the note that the user gave what the script decides."""
        if "precision" not in self.decided:
            return plan
        kept = tuple(note for note in plan.assumptions if note.id != "precision-given")
        return replace(plan, assumptions=kept)
