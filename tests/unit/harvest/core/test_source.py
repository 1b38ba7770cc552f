"""Whether a database goes on from what it was, and which configuration harvests it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from harvest.core.source import Registration, Source, differences, registration_problem
from harvest.errors import CheckpointError

BEFORE = Source("7312", 1, 0x3_0000_1000, "5.16384", "16385.16385", 7, "aa")


def test_a_source_survives_being_written() -> None:
    assert Source.decode(BEFORE.encode()) == BEFORE
    longest = Source(
        "9" * 20, 2**31, 2**63, "1." + "9" * 20, "9" * 21, 2**62, "f" * 16, 2**62, "f" * 8
    )
    assert len(longest.encode()) < 250


@pytest.mark.parametrize("text", ["[4]", "[2,1,2]", "x", '[4,"a","b",0,"","",1,""]'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        Source.decode(text)


@pytest.mark.parametrize(
    "now",
    [
        BEFORE,
        replace(BEFORE, log=BEFORE.log + 1),
        replace(BEFORE, visit=8, token="bb"),
        replace(BEFORE, sequence=""),  # mark mode, where ids may begin anew
    ],
)
def test_what_goes_on(now: Source) -> None:
    assert differences(BEFORE, now) is None


def test_a_server_whose_name_was_not_known_is_no_other() -> None:
    """Its last visit has to be there all the same."""
    before = replace(BEFORE, server="")
    assert differences(before, BEFORE) is None
    assert differences(before, replace(BEFORE, visit=6)) is not None


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (replace(BEFORE, server="9"), "another server: 9 and not 7312"),
        (replace(BEFORE, visit=6), "gone back in time.* number 6, .* number 7"),
        (replace(BEFORE, token="bb"), "gone back in time"),
        (replace(BEFORE, timeline=0), "from timeline 1 to 0"),
        (replace(BEFORE, log=BEFORE.log - 1), "log ends at 3/FFF, .* up to 3/1000"),
        (replace(BEFORE, table="5.16390"), "the table was made anew"),
        (replace(BEFORE, sequence="16385.16400"), "its ids were begun anew"),
    ],
)
def test_what_does_not_go_on(now: Source, said: str) -> None:
    found = differences(BEFORE, now)
    assert found is not None
    assert re.search(said, found)


def test_a_promoted_replica_goes_on_if_it_had_all_that_was_harvested() -> None:
    now = replace(BEFORE, timeline=2, log=BEFORE.log + 5)
    assert differences(BEFORE, now, promoted_at=BEFORE.log) is None
    for promoted_at, said in ((BEFORE.log - 1, "up to 3/FFF"), (None, "an unknown position")):
        found = differences(BEFORE, now, promoted_at=promoted_at)
        assert found is not None
        assert said in found


def test_what_was_promoted_twice_has_not_all_because_the_last_promotion_was_late() -> None:
    """The first may have lost commits, whatever was written and promoted after it."""
    now = replace(BEFORE, timeline=BEFORE.timeline + 2, log=BEFORE.log + 9)
    found = differences(BEFORE, now, promoted_at=BEFORE.log + 5)
    assert found is not None
    assert "promoted more than once" in found


def test_another_configuration_is_named() -> None:
    ours = Registration("c", "t", "g", "mark")
    assert registration_problem(ours, ours) is None
    assert registration_problem(ours, replace(ours, cluster="")) is None
    for other, said in (
        (replace(ours, mode="range"), "mode 'mark' and not 'range'"),
        (replace(ours, group="h"), "group 'g' and not 'h'"),
        (replace(ours, topic="u"), "coordination topic 't' and not 'u'"),
        (replace(ours, cluster="d"), "Kafka cluster 'c' and not 'd'"),
    ):
        assert said in (registration_problem(ours, other) or "")
