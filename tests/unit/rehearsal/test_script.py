"""Variables that give an Accelerate script DeepSpeed: what is said where they do less than was meant."""

from __future__ import annotations

import pytest

from zerokit.rehearsal.script import FILE, SWITCH, warnings


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({FILE: "ds.json"}, [f"{FILE} is set, but Accelerate uses DeepSpeed only with {SWITCH}=true"]),
        ({SWITCH: "false", FILE: "ds.json"}, [f"{SWITCH}=false leaves DeepSpeed off"]),
        ({SWITCH: "1", FILE: "ds.json"}, [f"{SWITCH}=1 does not turn DeepSpeed on"]),
        (
            {SWITCH: "true", "ACCELERATE_DEEPSPEED_CONFIG": "ds.json"},
            [f"does not read ACCELERATE_DEEPSPEED_CONFIG; did you mean {FILE}?", f"without {FILE}"],
        ),
        (
            {"ACCELERATE_USE_DEEPSPED": "true", FILE: "ds.json"},
            [f"does not read ACCELERATE_USE_DEEPSPED; did you mean {SWITCH}?", f"only with {SWITCH}=true"],
        ),
        ({SWITCH: "true"}, [f"without {FILE}", ]),
        ({SWITCH: "True", FILE: "ds.json"}, []),
        ({SWITCH: "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, []),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, []),
    ],
)  # fmt: skip
def test_variables_that_do_less_than_was_meant_are_named(
    environment: dict[str, str], said: list[str]
) -> None:
    found = warnings(environment)
    assert len(found) == len(said)
    for line, part in zip(found, said, strict=True):
        assert part in line
