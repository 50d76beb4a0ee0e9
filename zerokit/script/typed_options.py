"""Options among the arguments that a user typed for a script, as its own parser takes them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from zerokit.script.trainer_arguments import means


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedOptions:
    """The arguments of one command.

    Attributes:
        exact: all options that the script's parser has; None where that is not argparse.
        unknown: those among them that the script is known not to have, whatever they may mean elsewhere.
        are_assignments: the script takes ``KEY=VALUE`` (LLaMA-Factory: ``train x.yaml KEY=VALUE``).
    """

    arguments: tuple[str, ...]
    exact: frozenset[str] | None
    unknown: frozenset[str] = frozenset()
    are_assignments: bool = False

    def value(self, names: tuple[str, ...]) -> tuple[str, str] | None:
        """The value of an option of one of these names, ``true`` for a flag without one, and how it is
        written."""
        found = self._found(names)
        if found is None:
            return None
        option, values = found
        if values is None:
            return "false", option
        first = values[0] if values else "true"
        return first, f"{option} {first}"

    def values(self, names: tuple[str, ...]) -> tuple[tuple[str, ...], str] | None:
        """The same of an option that may take several (``--lora_target_modules q_proj v_proj``)."""
        found = self._found(names)
        if found is None:
            return None
        option, values = found
        return values or (), " ".join((option, *(values or ())))

    def _found(self, names: tuple[str, ...]) -> tuple[str, tuple[str, ...] | None] | None:
        """The option as it is typed and all that follows it to the next one; None for its values where it is
        turned off (``--no_…``)."""
        spelt, negated = _spelt("--", names), _spelt("--no_", names)
        for index, argument in enumerate(self.arguments):
            option, equals, value = argument.partition("=")
            if option in self.unknown:
                continue
            if option in negated:
                return option, None
            assigned = self.are_assignments and equals and option in names
            if not assigned and not means(option, spelt, self.exact):
                continue
            if equals:
                return option, (value,)
            following = self.arguments[index + 1 :]
            return option, tuple(itertools.takewhile(lambda word: not word.startswith("--"), following))
        return None


def _spelt(begin: str, names: tuple[str, ...]) -> set[str]:
    """Options with underscores and with hyphens."""
    options = {f"{begin}{name}" for name in names}
    return options | {f"--{option[2:].replace('_', '-')}" for option in options}
