"""Sets of small numbers as text, ``0-99,105``: how the grid travels. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["by_value", "ranges"]


def ranges(numbers: Iterable[int]) -> str:
    """Return increasing numbers as ``0-99,105``; a run of two or more is one range."""
    parts: list[str] = []
    first = last = -2
    for n in numbers:
        if n == last + 1:
            last = n
            continue
        if last >= 0:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = n
    if last >= 0:
        parts.append(str(first) if first == last else f"{first}-{last}")
    return ",".join(parts)


def by_value(values: Sequence[int], among: Iterable[int] | None = None) -> dict[str, str]:
    """Return value → ranges of the indices that have it.

    `among`: of these indices alone, in increasing order; by default of all, without the zeros.
    """
    found: dict[int, list[int]] = {}
    if among is None:
        for index, value in enumerate(values):
            if value:
                found.setdefault(value, []).append(index)
    else:
        for index in among:
            found.setdefault(values[index], []).append(index)
    return {str(value): ranges(indices) for value, indices in found.items()}
