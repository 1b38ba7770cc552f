"""The golden histories, hashes and decodings of specs/vectors (PROTOCOL.md §11)."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from marshal_py.errors import MalformedRecord
from marshal_py.protocol import events as ev
from marshal_py.protocol import messages as m
from marshal_py.protocol.rationalizer import PartitionState, apply
from marshal_py.protocol.world import World, coordinating_partition
from tests.support import make_vectors, vector_format
from tests.support.spec import spec

HISTORY_FILES = sorted(make_vectors.HISTORIES)


def load(name: str) -> Any:
    return json.loads((make_vectors.FOLDER / name).read_text("utf-8"))


HISTORIES = [(file, history) for file in HISTORY_FILES for history in load(f"{file}.json")]


@pytest.mark.parametrize(
    ("file", "history"), HISTORIES, ids=[f"{file}-{h['name']}" for file, h in HISTORIES]
)
@spec("F-1", "F-2", "S-1", "S-2")
def test_history(file: str, history: dict[str, Any]) -> None:
    state = PartitionState(0)
    for step in history["steps"]:
        value = None if step["value"] is None else bytes.fromhex(step["value"])
        events: list[ev.Event] = []
        apply(state, step["offset"], value, events)
        assert [vector_format.event(event) for event in events] == step["events"]
        assert vector_format.state(state) == step["state"]
        assert state.digest().hex() == step["digest"]


def test_the_files_are_what_the_script_writes() -> None:
    texts = make_vectors.files()
    assert {path.name for path in make_vectors.FOLDER.iterdir()} == set(texts)
    for name, text in texts.items():
        assert (make_vectors.FOLDER / name).read_text("utf-8") == text, (
            f"{name} is not what its histories lead to: python -m tests.support.make_vectors"
        )


def test_names_of_histories_are_unique() -> None:
    names = [(file, history["name"]) for file, history in HISTORIES]
    assert len(names) == len(set(names))


def test_the_histories_cover_the_transition_table() -> None:
    steps = list(itertools.chain.from_iterable(history["steps"] for _, history in HISTORIES))
    seen = {
        (event.get("record", event["event"]), event.get("reason", event.get("why")))
        for step in steps
        for event in step["events"]
    }
    assert seen == {
        ("Claimed", None),
        ("ClaimingPartition", "group_paused"),
        ("ClaimingPartition", "stale_version"),
        ("Beat", None),
        ("Renewed", None),
        ("Heartbeat", "not_held"),
        ("Heartbeat", "cannot_follow"),
        ("MemberJoined", None),
        ("MemberLeft", "left"),
        ("MemberLeft", "expired"),
        ("Released", None),
        ("ReleasingPartition", "not_held"),
        ("ReleasingPartition", "wrong_epoch"),
        ("MessagesClaimed", None),
        ("ClaimingMessages", "not_held"),
        ("ClaimingMessages", "wrong_epoch"),
        ("ClaimingMessages", "offset_not_ahead"),
        ("GroupPaused", None),
        ("GroupResumed", None),
        ("ResumeGroup", "not_paused"),
        ("ResumeGroup", "stale_version"),
        ("Founded", None),
        ("Genesis", "wrong_identity"),
        ("Genesis", "base_too_low"),
        ("LevelSet", None),
        ("SetLevel", "stale_level"),
        ("SetLevel", "cannot_follow"),
        ("RangeGranted", None),
        ("RangeSplit", None),
        ("ClaimingRange", "group_paused"),
        ("ClaimingRange", "cell_exists"),
        ("ClaimingRange", "still_held"),
        ("ClaimingRange", "outside_range"),
        ("SplittingRange", "not_held"),
        ("SplittingRange", "wrong_epoch"),
        ("SplittingRange", "outside_range"),
        ("SplittingRange", "cell_exists"),
        ("ClaimingPartition", "has_ranges"),
        ("ClaimingMessages", "outside_range"),
        ("SetPosition", "outside_range"),
        ("SetPosition", "still_held"),
        ("PositionSet", None),
        ("SetPosition", "not_paused"),
        ("SetPosition", "stale_version"),
        ("GroupForgotten", None),
        ("ForgetGroup", "not_paused"),
        ("ForgetGroup", "stale_version"),
        ("ForgetGroup", "still_held"),
        ("Ignored", "undecodable"),
        ("Ignored", "unknown_type"),
        ("Ignored", "unknown_version"),
        ("Ignored", "offset_repeated"),
    }


@spec("R-1", "F-10")
@pytest.mark.parametrize("row", load("decoding.json"), ids=lambda row: row["value"][:40])
def test_decoding(row: dict[str, Any]) -> None:
    value = bytes.fromhex(row["value"])
    if isinstance(row["record"], str):
        with pytest.raises(MalformedRecord, match=row["record"]):
            m.decode(value)
        return
    record = m.decode(value)
    expected = dict(row["record"])
    assert expected.pop("record") == type(record).__name__
    assert {name: _plain(getattr(record, name)) for name in expected} == expected
    assert m.decode(m.encode(record)) == record


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [
            {name: _plain(getattr(entry, name)) for name in entry.__struct_fields__}
            if hasattr(entry, "__struct_fields__")
            else entry
            for entry in value
        ]
    return value


@spec("T-1")
@pytest.mark.parametrize("row", load("hashes.json")["coordinating_partition"], ids=str)
def test_coordinating_partition(row: dict[str, Any]) -> None:
    group = row["group_id"]
    for count, partition in row["of"].items():
        assert coordinating_partition(group, int(count)) == partition == row["hash"] % int(count)
        world = World(int(count))
        assert world.home(group) == partition
        assert {world.coordinator(group, topic, p) for topic in "tu" for p in range(9)} == {
            partition
        }
