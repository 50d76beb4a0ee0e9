"""Which rows of a large data set stand for all: the longest, and some of every length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MOST_ROWS = 4096
MOST_BYTES = 32 << 20
"""Rows, and bytes of their text and numbers, beyond either of which a data set is cut."""
SAMPLE_ROWS, SAMPLE_BYTES = 2048, 16 << 20
_SPREAD = 4
"""One row of so many in the sample is taken evenly from all lengths; the others are the longest."""


def chosen_rows(dataset: Any, fewest: int) -> list[int] | None:
    """The rows of a sample, in their order; None where the data set is small.

    Args:
        fewest: rows, however long they are.
    """
    count = len(dataset)
    if count <= fewest or count <= SAMPLE_ROWS // _SPREAD:
        return None
    sizes = row_bytes(dataset)
    if count <= MOST_ROWS and int(sizes.sum()) <= MOST_BYTES:
        return None
    order = np.argsort(-sizes, kind="stable")
    sample_size = min(count, max(SAMPLE_ROWS, fewest))
    chosen = _sample(order, sample_size)
    while int(sizes[chosen].sum()) > SAMPLE_BYTES and sample_size > fewest:
        sample_size = max(fewest, sample_size // 2)
        chosen = _sample(order, sample_size)
    return sorted(int(row) for row in chosen) if sample_size < count else None


def _sample(order: Any, sample_size: int) -> Any:
    longest = sample_size - sample_size // _SPREAD
    rest = order[longest:]
    spread = np.linspace(0, len(rest) - 1, sample_size - longest, dtype=np.int64)
    return np.concatenate([order[:longest], rest[np.unique(spread)]])


def row_bytes(dataset: Any) -> Any:
    """Bytes of each row's text, read from its offsets alone; a number counts as one, so that tokens are as
    much as their text."""
    table = dataset.data.table
    parts = [
        sum((element_bytes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))
        for batch in table.to_batches()
    ]
    sizes = np.concatenate(parts) if parts else np.zeros(0, np.int64)
    if dataset._indices is not None:
        sizes = sizes[np.asarray(dataset._indices.column(0))]
    return sizes


def element_bytes(values: Any) -> Any:
    """Bytes of each element, whatever is nested in it; of a kind that is not known one."""
    kind, types = values.type, pa.types
    if isinstance(values, pa.ExtensionArray):
        return element_bytes(values.storage)
    if types.is_run_end_encoded(kind):
        return element_bytes(pc.run_end_decode(values))
    if types.is_dictionary(kind):
        of_entry = np.append(element_bytes(values.dictionary), 0)  # the last: of a null
        return of_entry[np.asarray(pc.fill_null(values.indices, len(of_entry) - 1)).astype(np.int64)]
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return element_bytes(
            values.cast(pa.large_string() if types.is_string_view(kind) else pa.large_binary())
        )
    if _is_text(kind):
        return np.asarray(pc.fill_null(pc.binary_length(values), 0)).astype(np.int64)
    if types.is_fixed_size_list(kind):
        first = values.offset * kind.list_size  # .values is that of the whole array
        inside = element_bytes(values.values[first : first + len(values) * kind.list_size])
        return inside.reshape(len(values), kind.list_size).sum(axis=1) * np.asarray(values.is_valid())
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        until = _bytes_until(values.values)
        starts = np.asarray(values.offsets)
        return until[starts + np.asarray(values.sizes)] - until[starts]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        until, offsets = _bytes_until(values.values), np.asarray(values.offsets)
        return until[offsets[1:]] - until[offsets[:-1]]
    if types.is_struct(kind):
        return sum((element_bytes(part) for part in values.flatten()), np.zeros(len(values), np.int64))
    return np.ones(len(values), np.int64)


def _bytes_until(values: Any) -> Any:
    """Of the elements before each; one more than there are elements."""
    return np.concatenate([[0], np.cumsum(element_bytes(values))])


def _is_text(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind)
        or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )  # fmt: skip
