"""Each invariant can fail: for each a bug that breaks it, and after how many histories.

``python -m tests.mutation.witnesses`` runs them all. A checker is worth nothing if what it checks
cannot fail; `test_every_invariant_has_a_witness` finds an invariant that nobody has seen broken.

A bug mostly breaks several invariants, and a history ends with the first. So histories that break
another one are passed over: what is shown is that this very check notices.
"""

from __future__ import annotations

import ast
import json
from typing import Annotated, Any, Final, NamedTuple

import typer

from tests.mutation.child import found_by, play
from tests.mutation.find import AnyMutant, find
from tests.mutation.load import Edit, Mutant
from tests.support.paths import ROOT

__all__ = ["CHECKERS", "WITNESSES", "Witness", "broken_after", "invariants"]

CHECKERS: Final = {
    "protocol": ("checks", "process", "simulator", "user"),
    "consumers": ("whole/checks", "whole/consumers", "whole/green"),
    "harvesters": ("whole/harvesters",),
    "handlers": ("whole/handlers",),
    "messages": ("whole/messages",),
    "logs": ("whole/logs",),
    "shards": ("whole/shards",),
    "dead_letters": ("whole/dead_letters",),
    "relays": ("whole/relays",),
    "wals": ("whole/wals",),
}
"""Where invariants are checked, below ``tests/simulation``."""


class Witness(NamedTuple):
    """A bug that breaks an invariant."""

    checker: str
    invariant: str
    histories: int
    """After so many histories, or fewer, it has."""
    mutants: tuple[Mutant | str, ...]
    """Put in together; a text is the name of one of `tests.mutation.mutants`."""
    campaign: str = ""
    """Which histories; by default, the checker's."""
    first: int = 1
    """The seed of the first history. Of a rare kind, one shortly before it is known to come."""

    @property
    def name(self) -> str:
        """Of the bug."""
        return " + ".join(m if isinstance(m, str) else m.name for m in self.mutants)

    def bugs(self) -> list[AnyMutant]:
        """Its mutants, those that are named looked up."""
        return [find(m) if isinstance(m, str) else m for m in self.mutants]


def invariants(checker: str) -> set[str]:
    """Return the names of all invariants that a checker checks, as its code has them."""
    found = set()
    for module in CHECKERS[checker]:
        tree = ast.parse((ROOT / "tests/simulation" / f"{module}.py").read_text("utf-8"))
        for node in ast.walk(tree):
            name: Any = None
            if isinstance(node, ast.Call):
                called = getattr(node.func, "attr", getattr(node.func, "id", ""))
                name = node.args[0] if called in ("fail", "Violation") and node.args else None
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                assigned = node.targets[0].id
                name = node.value if assigned == "problem" else None
                if assigned == "violation" and isinstance(node.value, ast.Tuple):
                    name = node.value.elts[0]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                found.add(name.value)
    return found


def _bug(name: str, module: str, *edits: tuple[str, str, str]) -> Mutant:
    return Mutant(name, module, tuple(Edit(*edit) for edit in edits))


CLAIMS: Final = "marshal_py.protocol.claimant"
ASSIGNMENT: Final = "marshal_py.consumer.assignment"

# What more than one witness has.
_STRANGE_EPOCH: Final = _bug(
    "an epoch is not the log's, and nobody compares them",
    CLAIMS,
    ("Claimant._on_claimed", "holding.epoch = event.epoch", "holding.epoch = 1 << 60"),
    ("Claimant._send_heartbeats", "self._reconcile(coordinator, now_ns)", "pass"),
)
_STUMBLES: Final = _bug(
    "the assignment stumbles over what is gone",
    "marshal_py.consumer.partitions",
    (
        "Partitions.remove",
        "self.by_key.pop(part.key, None)",
        "self.by_key.pop(part)  # type: ignore[call-overload]",
    ),
)
_UNDONE: Final = _bug(
    "a database shows what was rolled back",
    "harvest.testing.memory_table",
    ("MemoryTransaction.rollback", "self._end()", "self.commit()"),
)
_NEVER_SETTLES: Final = (
    "Assignment._round",
    "if self._partitions.wind_up():",
    "if self._partitions.wind_up() and False:",
)
_AND_IS_WAITED_FOR: Final = (
    "Assignment.close",
    "self._settled.wait(max(0.1, deadline - time.monotonic()))",
)
_ROWS_BESIDE_BAD_ONES: Final = (
    "MarkScheduler._dead_letters_added",
    "rows = [row for row in held.rows if row.id not in out]",
)

_PROTOCOL: Final[list[tuple[str, int, Mutant | str]]] = [
    (
        "a claim whose position is being set ends",
        20,
        _bug(
            "nobody waits for what was sent",
            CLAIMS,
            (
                "Claimant._send_position",
                'self._append(record, holding.coordinator, "position", holding, now_ns)',
                "self._appends.append(Append(holding.coordinator, seq, encode(record)))",
            ),
        ),
    ),
    ("a free cell is claimed", 20, "claimant: claiming: on after a release"),
    (
        "a group has one partition",
        5,
        _bug(
            "heartbeats go astray",
            CLAIMS,
            (
                "Claimant.__init__",
                "self.home = world.home(group_id)",
                "self.home = (world.home(group_id) + 1) % world.partitions",
            ),
        ),
    ),
    ("a lease that is over lapses", 5, "claimant: lease: a lapse is noticed"),
    ("a pause ends the acting", 20, "claimant: pause: the holder stops"),
    ("a pause ends the storing", 20, "claimant: changes: not of what is paused"),
    ("a pause is told", 20, "claimant: pause: the user hears of it"),
    (
        "a paused claim is released",
        20,
        _bug(
            "a pause releases nothing",
            CLAIMS,
            (
                "Claimant._on_paused",
                "self._release_at(holding, max(now_ns, holding.lease_until_ns))",
                "pass",
            ),
        ),
    ),
    ("a release stores the position", 20, "claimant: release: with the position"),
    (
        "a truncation ends every lease",
        100,
        _bug(
            "a truncation ends nothing",
            CLAIMS,
            (
                "Claimant.truncated",
                "self._end(holding, ClaimEvent.TRUNCATED, why)",
                "pass",
            ),
        ),
    ),
    ("a twin is noticed", 20, "claimant: twin: the loser knows"),
    ("a waiting claim is woken", 5, "claimant: claiming: it looks again"),
    (
        "a zombie's epoch is smaller",
        100,
        _STRANGE_EPOCH,
    ),
    ("at most once", 60, "claimant: claiming: what was claimed of the messages"),
    ("at most once: accepted", 20, "claimant: messages: of unknown outcome are not accepted"),
    ("at most once: ranges", 20, "fold: messages: what was claimed is kept"),
    ("calm after the storm", 20, "claimant: renewal: once an interval"),
    ("claims are renewed", 5, "claimant: renewal: heartbeats go on"),
    ("commits go up", 5, "claimant: commit: goes up only"),
    (
        "epochs increase",
        20,
        _bug(
            "claims that are near each other have the same epoch",
            "marshal_py.protocol.rationalizer",
            (
                "_take",
                "                epoch,\n                record.interval_ms,",
                "                epoch // 16 * 16,\n                record.interval_ms,",
            ),
        ),
    ),
    ("equal prefixes, equal states", 60, "planted: a snapshot forgets that a group is paused"),
    ("every claim of messages is answered", 20, "claimant: messages: accepted is told"),
    ("every end is announced", 5, "claimant: end: told"),
    ("exclusion", 5, "claimant: claiming: a held cell only when it may"),
    ("fenced by a twin", 20, "claimant: twin: the loser wants nothing new"),
    ("held is announced", 40, "claimant: lease: what is read too late renews nothing"),
    ("its past is resumed at once", 20, "claimant: resume: it does"),
    ("leaving ends", 100, "claimant: leaving: releases"),
    ("liveness", 5, "fold: resume: it resumes"),
    ("members are seen", 20, "claimant: membership: heartbeats begin"),
    ("memory", 10, "claimant: memory: what is settled is forgotten"),
    ("nobody takes from himself", 20, "fold: release: the cell is free"),
    ("nothing raises", 200, "claimant: end: told once"),
    (
        "notices make sense",
        20,
        _bug(
            "what comes back is told as new",
            CLAIMS,
            (
                "Claimant._extend_lease",
                '"regained" if holding.acquired else "acquired"',
                '"acquired"',
            ),
        ),
    ),
    ("one holder an epoch", 5, "fold: claim: the instance"),
    ("only holders", 5, "claimant: commit: only what is held"),
    ("only the past is resumed", 200, "claimant: resume: only when asked for"),
    ("positions go up", 5, "fold: claim: positions are kept"),
    ("silence", 100, "claimant: partition count changed: silence"),
    (
        "stored is in the log",
        20,
        _bug(
            "more is told than is stored",
            CLAIMS,
            (
                "Claimant._on_stored",
                '"stored", holding, "", event.next_offset)',
                '"stored", holding, "", event.next_offset + 1)',
            ),
        ),
    ),
    ("the model agrees", 5, "fold: heartbeat: the position is stored"),
    ("who acts follows the level", 400, "fold: level: everybody can follow"),
    (
        "what nobody wants is given back",
        100,
        _bug(
            "a release is not sent, and nobody compares",
            CLAIMS,
            (
                "Claimant._start_release",
                "self._release(holding, now_ns)",
                'self._end(holding, ClaimEvent.RELEASE_READ, "released")',
            ),
            ("Claimant._send_heartbeats", "self._reconcile(coordinator, now_ns)", "pass"),
        ),
    ),
    ("what is stored is told", 5, "claimant: commit: told when stored"),
    ("who has read of a loss knows", 5, "claimant: claiming: another's claim ends its own"),
    ("who leaves holds nothing", 100, "claimant: leaving: waits for its releases"),
    (
        "who leaves says goodbye",
        1_000,
        _bug(
            "who leaves says nothing",
            CLAIMS,
            ("Claimant.leave", "self._send_heartbeat(self.home, [], [], 2, now_ns)", "pass"),
        ),
    ),
]

_CONSUMERS: Final[list[tuple[str, int, *tuple[Mutant | str, ...]]]] = [
    (
        "a pause ends delivery",
        60,
        _bug(
            "a pause does not end a lease",
            CLAIMS,
            (
                "Claimant._on_paused",
                "for holding in list(self._ours[coordinator].values()):",
                "for holding in ():",
            ),
        ),
    ),
    ("a release carries what is done", 20, "consumer: the position is stored before the release"),
    ("a release waits for what is in hand", 60, "consumer: what is in hand is waited for"),
    (
        "at least once: a heartbeat carries what is done",
        5,
        "consumer: positions go with heartbeats",
    ),
    ("at least once: nothing is skipped", 5, "consumer: a partition starts at its position"),
    ("at least once: stored is done", 60, "consumer: a message in hand is not done"),
    ("at most once", 60, "claimant: claiming: what was claimed of the messages"),
    ("at most once: claimed", 60, "consumer: messages are claimed before they go out"),
    (
        "closing ends",
        60,
        _bug(
            "the assignment never settles, and is waited for",
            ASSIGNMENT,
            _NEVER_SETTLES,
            (*_AND_IS_WAITED_FOR, "self._settled.wait()"),
        ),
    ),
    (
        "closing takes its time and no more",
        60,
        _bug(
            "the assignment never settles, and is waited for too long",
            ASSIGNMENT,
            _NEVER_SETTLES,
            (
                *_AND_IS_WAITED_FOR,
                "self._settled.wait(max(0.1, deadline - time.monotonic()) + 10)",
            ),
        ),
    ),
    ("every partition has a holder", 5, "consumer: what is free is claimed"),
    ("exclusion", 60, "claimant: lease: two intervals, not three"),
    (
        "no twin is seen where there is none",
        60,
        _bug(
            "whoever takes over is a twin",
            CLAIMS,
            (
                "Claimant._lose",
                " and event.client_id == self.client_id:",
                ":",
            ),
        ),
    ),
    (
        "nobody fails",
        60,
        _STUMBLES,
        _bug(
            "a loop does not hear of it",
            "marshal_py.consumer.iteration",
            ("Iteration.next_run", "if self._wakeup.failure is not None:", "if False:"),
        ),
    ),
    (
        "nobody holds more than it wants",
        60,
        _bug(
            "a limit of claims is one more",
            "marshal_py.protocol.balance",
            ("_cap", "else subscription.max_claims", "else subscription.max_claims + 1"),
        ),
    ),
    ("nothing is lost", 20, "consumer: a pause of fetching does not outlive the assignment"),
    (
        "nothing raises",
        20,
        _STUMBLES,
    ),
    ("shares are fair", 20, "consumer: a partition that is given back is released"),
    ("the position follows", 60, "fold: heartbeat: the position is stored"),
    (
        "what is fair stays",
        60,
        _bug(
            "what is even is moved on",
            "marshal_py.protocol.balance",
            (
                "_Counts._even_out_one",
                "if not least[0][0] < level:",
                "if not least[0][0] <= level:",
            ),
            ("_Counts._even_out_one", "self.level(m) > lowest", "self.level(m) >= lowest"),
        ),
    ),
    (
        "who closes holds nothing",
        60,
        _bug(
            "a release is not sent",
            CLAIMS,
            (
                "Claimant._start_release",
                "self._release(holding, now_ns)",
                'self._end(holding, ClaimEvent.RELEASE_READ, "released")',
            ),
        ),
    ),
    (
        "who delivers has claimed",
        20,
        _STRANGE_EPOCH,
    ),
]

_HARVESTERS: Final[list[tuple[str, int, str, Mutant | str]]] = [
    ("every committed row", 20, "ranges", "range: all merged sends are settled"),
    ("exactly once", 400, "", "harvest: the checkpoint is that of the last batch"),
    ("only committed rows", 5, "", _UNDONE),
    (
        "order of a key",
        40,
        "dead_letters",
        "dead letters: what waits is loaded when the sink is opened",
    ),
    (
        "stopping ends",
        60,
        "",
        _bug(
            "who is told to stop does not hear it",
            "harvest.runtime.harvester",
            (
                "Harvester.stop",
                "self._stopping = True",
                "pass",
            ),
        ),
    ),
    ("the outbox is emptied", 20, "", "harvest: all merged batches are settled"),
]

_DEAD_LETTERS: Final[list[tuple[str, int, Mutant | str]]] = [
    (
        "bad rows are not published",
        20,
        _bug(
            "no row is bad",
            "harvest.core.dead_letters",
            ("BadRowFilter.find_bad", 'if self.policy.on_bad_row == "stop":', "if True:"),
        ),
    ),
    (
        "bad rows hold up nobody",
        60,
        _bug(
            "what comes with bad rows is forgotten",
            "harvest.core.mark",
            (*_ROWS_BESIDE_BAD_ONES, "rows: list[Row] = []"),
        ),
    ),
    ("only committed rows", 20, _UNDONE),
    (
        "only bad rows are set aside",
        60,
        _bug(
            "all that was sent with a refused row is set aside",
            "harvest.core.dead_letters",
            ("BadRowFilter.find_refused", "if row.id in failure.refused:", "if True:"),
        ),
    ),
    (
        "set aside or published",
        60,
        _bug(
            "what is set aside is sent, too",
            "harvest.core.mark",
            (*_ROWS_BESIDE_BAD_ONES, "rows = held.rows"),
        ),
    ),
]

_RELAYS: Final[list[tuple[str, int, Mutant | str]]] = [
    (
        "a message goes with its own key",
        20,
        _bug(
            "all messages of a request have the key of the first",
            "harvest.runtime.relay_leader",
            (
                "RelayLeader._send_batch",
                "tools.router.unique(message.row)) for message in request",
                "tools.router.unique(request[0].row)) for message in request",
            ),
        ),
    ),
    ("only committed rows", 20, _UNDONE),
    ("order of a key", 60, "relays: what can go nowhere holds up its key at each destination"),
]

_LOGS: Final[list[tuple[str, int, str]]] = [
    ("exclusion", 30, "a log without a genesis is given one"),
    ("equal logs, equal states", 60, "an offset that is not there is a log that was lost"),
    ("who reads keeps up", 80, "a state is begun anew with its log"),
]

RANGE_STREAM: Final = "marshal_py.consumer.range_stream"

_MESSAGES: Final[list[tuple[str, int, Mutant]]] = [
    (
        "at least once: what counts as done is done",
        20,
        _bug(
            "the position while a run is in hand is that of its last message",
            "marshal_py.consumer.held_partition",
            (
                "HeldPartition._position",
                "offset: int = run.in_hand.offset()",
                "offset: int = run.messages[-1].offset()",
            ),
        ),
    ),
    (
        "at least once: what counts as done is there",
        20,
        _bug(
            "a range counts as read to its end, wherever Kafka is",
            RANGE_STREAM,
            (
                "RangeStream.passed",
                "self._read(part, min(end, part.end_offset or 0))",
                "self._read(part, part.end_offset or 0)",
            ),
        ),
    ),
    (
        "each message from its own range",
        20,
        _bug(
            "what is split off is handed out all the same",
            CLAIMS,
            ("Claimant.split", "holding.end = at", "pass"),
            ("Claimant._on_split", "holding.end = min(holding.end, event.at)", "pass"),
        ),
    ),
    (
        "everything is done in the end",
        20,
        _bug(
            "nobody takes over a range",
            "marshal_py.consumer.ranges",
            ("RangeClaims._take_over", "in group.open_ranges.of(about.source):", "in ():"),
        ),
    ),
    (
        "nothing of a range is skipped",
        20,
        _bug(
            "the first message that was kept for a range is left out",
            RANGE_STREAM,
            (
                "RangeStream.kept_for_parts",
                "mine = self._kept[first:last]",
                "mine = self._kept[first + 1 : last]",
            ),
        ),
    ),
    (
        "order within a range",
        20,
        _bug(
            "what a range was given, it is given again",
            RANGE_STREAM,
            ("RangeStream._read", "part.read_to = end", "pass"),
        ),
    ),
    (
        "what is done stays done",
        20,
        _bug(
            "who says that nothing was begun takes back what was done before",
            "marshal_py.protocol.rationalizer",
            ("_release", "record.next_offset > cell.next_offset", "True"),
        ),
    ),
]

_HANDLERS: Final[list[tuple[str, int, str]]] = [
    ("a dead letter has had its attempts", 20, "a message has all its attempts"),
    ("a dead letter is the message as it came", 20, "a dead letter is key and value as they came"),
    ("a dead letter names the claim", 20, "a dead letter names the claim"),
    ("at least once: nothing is skipped", 20, "all that was fetched is queued"),
    ("only what fails for good becomes a dead letter", 20, "a message has all its attempts"),
    ("order", 20, "what was fetched is queued once"),
    ("order: one at a time", 20, "messages of one key wait for one another"),
    ("order: what failed comes first", 20, "what failed comes before what is behind it"),
]

WITNESSES: Final[tuple[Witness, ...]] = (
    *(Witness("protocol", name, most, (bug,)) for name, most, bug in _PROTOCOL),
    *(Witness("consumers", name, most, tuple(bugs)) for name, most, *bugs in _CONSUMERS),
    Witness(
        "consumers",
        "a lease stands behind every message",
        600,
        ("consumer: nothing goes out without a lease",),
        first=85,
    ),
    Witness(
        "consumers",
        "each message to its own slot",
        5,
        ("keys: a message belongs to the slot of its key",),
        "keys",
    ),
    Witness("consumers", "order", 20, ("keys: what a slot has had is passed over",), "keys"),
    *(Witness("harvesters", name, most, (bug,), kind) for name, most, kind, bug in _HARVESTERS),
    *(Witness("handlers", name, most, (f"handlers: {bug}",)) for name, most, bug in _HANDLERS),
    Witness(
        "handlers",
        "what was finished before a release does not come again",
        300,
        (
            "handlers: a partition is given back when nothing of it waits",
            "handlers: what is done above a gap is told when a partition is given back",
        ),
        first=400,
    ),
    *(Witness("messages", name, most, (bug,)) for name, most, bug in _MESSAGES),
    Witness("shards", "shares are fair", 5, ("shards: a shard that goes is stopped",)),
    *(Witness("dead_letters", name, most, (bug,)) for name, most, bug in _DEAD_LETTERS),
    Witness(
        "dead_letters",
        "only what was published is deleted",
        60,
        ("sinks: transactions: a step that timed out is not done",),
        "sinks",
    ),
    *(Witness("logs", name, most, (f"logs: {bug}",)) for name, most, bug in _LOGS),
    *(Witness("relays", name, most, (bug,)) for name, most, bug in _RELAYS),
    Witness(
        "wals", "nothing is refused without reason", 60, ("wal: a delivery that failed is none",)
    ),
)

app = typer.Typer(add_completion=False)


@app.command()
def main(
    only: Annotated[str, typer.Option(help="Only invariants whose name contains this.")] = "",
    checker: Annotated[str, typer.Option(help=f"Only of one of {', '.join(CHECKERS)}.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    child: Annotated[int, typer.Option(hidden=True)] = -1,
) -> None:
    """Break each invariant by a bug, and print after how many histories it was noticed.

    Exit status: 0 all were broken; 1 some were not.

    Example: python -m tests.mutation.witnesses --json > witnesses.json
    """
    if child >= 0:
        witness = WITNESSES[child]
        campaign = witness.campaign or witness.checker
        play(witness.bugs(), campaign, witness.histories, witness.first, wanted=witness.invariant)
        return
    rows: list[dict[str, Any]] = []
    for witness in WITNESSES:
        if only not in witness.invariant or checker not in ("", witness.checker):
            continue
        after = broken_after(witness)
        row = {"checker": witness.checker, "invariant": witness.invariant}
        rows.append({**row, "bug": witness.name, "histories": after})
        if not as_json:
            found = "NOT BROKEN" if after is None else f"after {after}"
            typer.echo(f"{witness.checker:<10} {witness.invariant:<48} {found:<10} {witness.name}")
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    raise typer.Exit(0 if all(row["histories"] for row in rows) else 1)


def broken_after(witness: Witness) -> int | None:
    """Return after how many histories the invariant was broken, None if it was not."""
    number = str(WITNESSES.index(witness))
    found = found_by("tests.mutation.witnesses", "--child", number)
    return found["histories"] if found["caught"] else None


if __name__ == "__main__":
    app()
