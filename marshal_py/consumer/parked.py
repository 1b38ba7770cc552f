"""Runs that could not go out, as the lease of their partition had lapsed."""

from __future__ import annotations

from marshal_py.consumer.held_partition import HeldPartition, Run

__all__ = ["Parked"]


class Parked:
    """The partitions that have parked runs (`HeldPartition.parked`). The loop's own."""

    def __init__(self) -> None:
        self._parts: list[HeldPartition] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def partitions(self) -> list[HeldPartition]:
        """Return them, each once, in the order in which they came."""
        return list(dict.fromkeys(self._parts))

    def add(self, run: Run) -> None:
        """Park `run` behind what is parked of its partition."""
        run.part.parked.append(run)
        self._parts.append(run.part)

    def add_first(self, run: Run) -> None:
        """Park `run` before what is parked of its partition."""
        run.part.parked.appendleft(run)
        self._parts.append(run.part)

    def clear(self, part: HeldPartition) -> None:
        """What was parked of `part` is taken up, or dropped."""
        part.parked.clear()
        self._parts = [other for other in self._parts if other is not part]
