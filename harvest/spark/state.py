"""What an incremental reconciliation remembers from one run to the next (specs/AUDIT.md §3).

::

    STATE/state.json               the last run: offsets, ids, open ids, which file is carried
    STATE/carried-000007/          rows without a record, and records without a row, of run 7

Executors write and read what is carried (Parquet), however much it is: the driver holds none of it.

`state.json` is replaced in one step when a run is done; a run that is killed has changed nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from harvest.core.gaps import Range, clip, subtract, union
from harvest.errors import ConfigurationError

__all__ = ["State", "StateFolder"]

_VERSION: Final = 3
"""It changes with what the hashes are made of, and how rows are carried."""
_FIRST: Final = -(1 << 63)
_LAST: Final = (1 << 63) - 1


@dataclass(frozen=True)
class State:
    """Where a run has ended.

    - `source`: which outbox it was; a folder belongs to one.
    - `offsets`: topic → partition → the next record to compare.
    - `last_id`: the highest id that was seen; None before any.
    - `open_ids`: (low, high, since): ids up to it that were not there, and when that was first seen
      (ms since 1970). They may belong to transactions that have not committed yet.
    - `carried`: how many rows and records are carried over.
    """

    source: str
    run: int = 0
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    last_id: int | None = None
    open_ids: Sequence[tuple[int, int, int]] = ()
    carried: int = 0

    def ids_to_look_for(self) -> list[Range]:
        """The ids whose rows no run has compared yet."""
        if self.last_id is None:
            return [(_FIRST, _LAST)]
        return union([*((low, high) for low, high, _ in self.open_ids), (self.last_id + 1, _LAST)])

    def after(
        self,
        present: Sequence[Range],
        offsets: Mapping[str, Mapping[int, int]],
        now_ms: int,
        late_ms: int,
    ) -> State:
        """The state after a run that found `present` of the ids it looked for.

        Ids that have been open for longer than `late_ms` are given up.
        """
        if not present and self.last_id is None:
            return State(self.source, self.run + 1, offsets)
        # Ids begin at 1 in most tables; a row that commits late may have one below the first seen.
        since = min(0, present[0][0] - 1) if self.last_id is None else self.last_id
        last_id = max([since, *(high for _, high in present)])
        left = [
            (low, high, seen_ms)
            for known_low, known_high, seen_ms in self.open_ids
            if seen_ms > now_ms - late_ms
            for low, high in subtract([(known_low, known_high)], present)
        ]
        new = subtract([(since + 1, last_id)], clip(present, since + 1, last_id))
        left += [(low, high, now_ms) for low, high in new]
        return State(self.source, self.run + 1, offsets, last_id, left)


class StateFolder:
    """A folder that the driver and all executors reach. Raises `ConfigurationError`."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigurationError(
                    f"another reconciliation works with the state in {self._folder}"
                ) from None
            yield

    def load(self, source: str) -> State:
        """The state that the last run has left."""
        path = self._folder / "state.json"
        if not path.exists():
            self._keep(State(source))
            return State(source)
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if content.pop("version") != _VERSION:
                raise ValueError("another version")
            offsets = {
                topic: {int(p): int(n) for p, n in parts.items()}
                for topic, parts in content.pop("offsets").items()
            }
            open_ids = [(int(a), int(b), int(c)) for a, b, c in content.pop("open_ids")]
            state = State(**content, offsets=offsets, open_ids=open_ids)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(
                f"{path} cannot be read ({error}): begin with an empty folder, and a full run"
            ) from None
        if state.source != source:
            raise ConfigurationError(
                f"{path} is the state of {state.source}, not of {source}: give each outbox a "
                "folder of its own"
            )
        self._check(state, "begin with an empty folder, and a full run")
        self._keep(state)  # a run that was killed may have left its rows
        return state

    def carried(self, run: int) -> Path:
        """Where a run's executors write what is carried over, if there is any."""
        return self._folder.resolve() / f"carried-{run:06}"

    def store(self, state: State) -> None:
        """Commit a run, when what it carries over has been written."""
        self._check(state, "give a folder that the driver and all executors reach")
        path = self._folder / "state.json"
        fresh = path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            json.dump({"version": _VERSION, **asdict(state)}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        self._keep(state)

    def _keep(self, state: State) -> None:
        """Remove what runs but that one carried over."""
        for path in self._folder.glob("carried-*"):
            if path.name != self.carried(state.run).name:
                shutil.rmtree(path)

    def _check(self, state: State, way_out: str) -> None:
        import pyarrow.parquet as pq

        folder = self.carried(state.run)
        rows = sum(pq.read_metadata(path).num_rows for path in folder.glob("*.parquet"))
        if rows != state.carried:
            raise ConfigurationError(
                f"{folder} has {rows:,} of {state.carried:,} rows that are carried over: {way_out}"
            )
