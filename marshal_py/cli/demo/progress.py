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
from marshal_py.cli.demo.processes import ProcessState

if TYPE_CHECKING:
    from marshal_py.cli.demo.scenario import Scenario

__all__ = ["LiveProgress", "PlainProgress"]

_COLOURS: Final = {
    ProcessState.RUNNING: "green",
    ProcessState.KILLED: "red",
    ProcessState.PAUSED: "yellow",
}


class PlainProgress:
    """A line for each thing that was done, and one every five seconds."""

    EVERY_S: Final = 5.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Say something before the demo has begun."""
        self._console.print(f"         {text}", markup=False)

    def report(self, at_s: float, text: str) -> None:
        """See `Progress.report`."""
        self._console.print(f"{at_s:6.1f} s {text}", markup=False)

    def update(self, scenario: Scenario) -> None:
        """See `Progress.update`."""
        now_s = time.monotonic()
        if now_s >= self._next_s and scenario.stats.committed_rows:
            self._next_s = now_s + self.EVERY_S
            self.report(scenario.at_s, counts(scenario))


def counts(scenario: Scenario) -> str:
    """Return how many rows are where, in a line."""
    stats = scenario.stats
    return (
        f"{stats.committed_rows:,} rows committed, {stats.rolled_back_rows:,} rolled back, "
        f"{len(scenario.topic.rows):,} in Kafka, {len(scenario.deliveries.rows):,} handled"
    )


class LiveProgress:
    """The processes, what they hold, and the latest events, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._said: list[str] = []

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """See `PlainProgress.say`."""
        self._live.update(Text(f"{text} …"), refresh=True)

    def report(self, at_s: float, text: str) -> None:
        """See `Progress.report`."""
        self._said = [*self._said[-7:], f"{at_s:6.1f} s {text}"]

    def update(self, scenario: Scenario) -> None:
        """See `Progress.update`."""
        self._live.update(
            Group(
                Text(f"{scenario.at_s:5.1f} s  {scenario.phase}", style="bold"),
                Text(counts(scenario)),
                Text(),
                _process_table(scenario),
                Text(),
                *(Text(line) for line in self._said),
                Text(),
                *(Text(f"  {line}", style="dim") for line in _recent(scenario)),
            )
        )


def _process_table(scenario: Scenario) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for column in ("PROCESS", "STATE", "HOLDS", "HANDLED"):
        table.add_column(column, no_wrap=True, justify="right" if column == "HANDLED" else "left")
    for name in ("writer", *HARVESTERS, *CONSUMERS):
        state = scenario.processes.states[name]
        held = scenario.log.held_by(name)
        parts = ", ".join(str(p) for topic, p in held if topic == scenario.config.topic)
        leads = any(cell == scenario.log.leader_cell for cell in held)
        handled = scenario.deliveries.by_consumer.get(name)
        table.add_row(
            name,
            Text(state.value, style=_COLOURS.get(state, "dim")),
            "leads" if leads else parts and f"partitions {parts}",
            "" if handled is None else f"{handled:,}",
        )
    return table


def _recent(scenario: Scenario) -> list[str]:
    with scenario.log.changed:
        return [as_text(event) for _, event in scenario.log.recent]
