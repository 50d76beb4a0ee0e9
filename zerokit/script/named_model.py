"""The model that a script's arguments name."""

from __future__ import annotations

from pathlib import Path

from zerokit.script.arguments import ScriptOptions
from zerokit.script.option_values import MODELS
from zerokit.suggest import misspelt

_OF_A_MODEL = ("config.json", "adapter_config.json")


def named_model(options: ScriptOptions) -> tuple[str, str] | None:
    """Its name or path, and how it stands in the arguments, their file or the script; None: nothing.

    An option is said to be the script's: zerokit may have one of the same name.
    """
    script = options.facts.path.name
    given = next((given for name in MODELS if (given := options.given(name)) is not None), None)
    if given is not None:
        model, location = given
        owner = f"{script}'s " if location.startswith("--") else ""
        return (model, f"{owner}{location}") if isinstance(model, str) else None
    own = options.own_defaults
    name = next((name for name in MODELS if isinstance(own.get(name), str)), None)
    return (
        None
        if name is None
        else (str(own[name]), f"{script}'s own {options.spelling(name)} is {own[name]} by default, which")
    )


def folder_meant(name: str) -> str | None:
    """The model's folder in the working folder that a name is nearly spelt as; None: it exists, or there is
    none. A name with a slash may be a repository of the Hub."""
    if not name or "/" in name or Path(name).exists():
        return None
    folders = [path.parent.name for file in _OF_A_MODEL for path in Path().glob(f"*/{file}")]
    return next(iter(misspelt(name, sorted(set(folders)))), None)
