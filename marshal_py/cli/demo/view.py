"""How far the demo is: a live view on a terminal, plain lines elsewhere. Both on standard error."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from marshal_py.admin.event_text import as_text
from marshal_py.cli.demo.config import CONSUMERS, HARVESTERS
from marshal_py.cli.demo.processes import State

if TYPE_CHECKING:
    from marshal_py.cli.demo.director import Director

__all__ = ["LiveView", "PlainView"]

_COLOURS: Final = {
    State.RUNNING: "green",
    State.KILLED: "red",
    State.PAUSED: "yellow",
}


class PlainView:
    """A line for each thing that was done, and one every five seconds."""

    EVERY_S: Final = 5.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Say something before the demo has begun."""
        self._console.print(f"         {text}", markup=False)

    def tell(self, at_s: float, text: str) -> None:
        """See `View.tell`."""
        self._console.print(f"{at_s:6.1f} s {text}", markup=False)

    def update(self, director: Director) -> None:
        """See `View.update`."""
        now_s = time.monotonic()
        if now_s >= self._next_s and director.stats.committed_rows:
            self._next_s = now_s + self.EVERY_S
            self.tell(director.at_s, counts(director))


def counts(director: Director) -> str:
    """Return how many rows are where, in a line."""
    stats = director.stats
    return (
        f"{stats.committed_rows:,} rows committed, {stats.rolled_back_rows:,} rolled back, "
        f"{len(director.topic.rows):,} in Kafka, {len(director.deliveries.rows):,} handled"
    )


class LiveView:
    """The processes, what they hold, and the latest events, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._said: list[str] = []

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """See `PlainView.say`."""
        self._live.update(Text(f"{text} …"), refresh=True)

    def tell(self, at_s: float, text: str) -> None:
        """See `View.tell`."""
        self._said = [*self._said[-7:], f"{at_s:6.1f} s {text}"]

    def update(self, director: Director) -> None:
        """See `View.update`."""
        self._live.update(
            Group(
                Text(f"{director.at_s:5.1f} s  {director.phase}", style="bold"),
                Text(counts(director)),
                Text(),
                _cast(director),
                Text(),
                *(Text(line) for line in self._said),
                Text(),
                *(Text(f"  {line}", style="dim") for line in _recent(director)),
            )
        )


def _cast(director: Director) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in ("PROCESS", "STATE", "HOLDS", "HANDLED"):
        table.add_column(column, no_wrap=True, justify="right" if column == "HANDLED" else "left")
    for name in ("writer", *HARVESTERS, *CONSUMERS):
        state = director.cast.states[name]
        held = director.log.held_by(name)
        parts = ", ".join(str(p) for topic, p in held if topic == director.config.topic)
        leads = any(cell == director.log.leader_cell for cell in held)
        handled = director.deliveries.by_consumer.get(name)
        table.add_row(
            name,
            Text(state.value, style=_COLOURS.get(state, "dim")),
            "leads" if leads else parts and f"partitions {parts}",
            "" if handled is None else f"{handled:,}",
        )
    return table


def _recent(director: Director) -> list[str]:
    with director.log.changed:
        return [as_text(event) for _, event in director.log.recent]
