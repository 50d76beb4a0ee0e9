"""A plan or an estimate as a small table, for the notebook that shows it."""

from __future__ import annotations

from zerokit.fields import plain
from zerokit.planner import answer
from zerokit.planner.documents import PlannedStrategy
from zerokit.planner.notebook_table import html_table
from zerokit.search.explain import cluster_words


def table(planned: PlannedStrategy, model_name: str) -> str:
    """HTML: whether it fits, how fast it is, the strategy, what the script must do."""
    rows = [
        ("fits", plain(answer.fits(planned))),
        *(("pace", text) for text in (answer.pace(planned), *answer.pace_notes(planned))),
        ("trains", answer.trains(planned.job)),
        ("strategy", answer.strategy(planned.strategy)),
        ("batch", answer.batch(planned)),
        ("memory", answer.memory(planned)),
        ("host memory", answer.host_memory(planned)),
        *([("NVMe disk", disk)] if (disk := answer.nvme(planned)) else []),
        *(("the script must", line) for line in answer.script_must(planned.strategy, planned.job)),
        *(("assumed", plain(note)) for note in answer.worth_a_look(planned.notes)),
    ]
    return html_table(f"{model_name} on {cluster_words(planned.cluster)}", rows)
