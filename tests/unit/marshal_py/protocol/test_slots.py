"""Names of slots, and which messages are theirs."""

from __future__ import annotations

import json
from collections import Counter
from zlib import crc32

import pytest

from marshal_py.errors import ConfigurationError
from marshal_py.protocol.shares import shares_of
from marshal_py.protocol.slots import (
    BY_PARTITIONS,
    BY_RANGES,
    MAX_SLOTS,
    Slot,
    agreed_for,
    agreement_cell,
    agreement_of,
    check_slots,
    slot_of,
    slot_of_key,
    slots_cell,
    source_of,
)
from marshal_py.protocol.subscription import Subscription
from tests.support.paths import ROOT
from tests.support.spec import spec

VECTORS = json.loads((ROOT / "specs/vectors/slots.json").read_text())


@spec("C-48")
@pytest.mark.parametrize("vector", VECTORS["names"])
def test_a_slot_is_a_cell_of_this_name(vector: dict[str, object]) -> None:
    found = slot_of(str(vector["cell_topic"]), int(str(vector["cell_partition"])))
    wanted = vector["slot"]
    assert (None if found is None else list(found)) == wanted
    if found is not None:
        assert slots_cell(found.topic, found.partition, found.slots) == vector["cell_topic"]


@spec("C-49")
@pytest.mark.parametrize("vector", VECTORS["messages"])
def test_a_message_belongs_to_the_slot_of_its_key(vector: dict[str, object]) -> None:
    key = None if vector["key"] is None else bytes.fromhex(str(vector["key"]))
    offset, slots = int(str(vector["offset"])), int(str(vector["slots"]))
    assert slot_of_key(key, offset, slots) == vector["slot"]


def test_the_source_of_anything_else_is_itself() -> None:
    assert source_of("orders/2#16", 3) == ("orders", 2)
    assert source_of("orders", 3) == ("orders", 3)
    assert source_of("leader:orders/2", 0) == ("leader:orders/2", 0)


def test_the_agreement_about_a_topic_is_no_slot() -> None:
    assert agreement_cell("orders") == ("orders#slots", 0)
    assert agreement_of("orders#slots") == "orders"
    assert agreement_of("orders/2#16") is None
    assert slot_of(*agreement_cell("orders")) is None


def test_keys_that_share_a_partition_share_no_slots() -> None:
    """A producer has chosen their partition by a hash, CRC-32 here: ours must be another one."""
    keys = [b"customer-%d" % n for n in range(20_000)]
    same = [key for key in keys if crc32(key) % 16 == 5]
    found = Counter(slot_of_key(key, 0, 16) for key in same)
    assert len(found) == 16
    assert max(found.values()) < 2 * min(found.values())


@pytest.mark.parametrize("slots", [0, -1, MAX_SLOTS + 1, 2.0, True, "16"])
def test_a_wrong_number_of_slots_is_refused(slots: object) -> None:
    with pytest.raises(ConfigurationError, match=r"slots = .* must be a whole number from 1 to"):
        check_slots(slots)  # type: ignore[arg-type]


def test_how_operators_say_it_and_what_stands_in_the_log() -> None:
    assert [agreed_for(slots) for slots in ("partitions", 0, 1, 1024, "ranges")] == [
        BY_PARTITIONS,
        0,
        1,
        1024,
        BY_RANGES,
    ]
    for wrong in (True, False, 1.0, -1, 1025, "keys"):
        with pytest.raises(ConfigurationError, match="must be a number from 0 to 1024"):
            agreed_for(wrong)  # type: ignore[arg-type]


def test_the_longest_name_of_a_slot_fits() -> None:
    longest = "t" * 233
    check_slots(MAX_SLOTS, {longest})
    assert len(slots_cell(longest, 2**31 - 1, MAX_SLOTS)) == 249
    with pytest.raises(ConfigurationError, match="too long"):
        check_slots(1, {longest + "t"})


def test_a_member_wants_slots_of_its_own_number_alone() -> None:
    eight, whole = (
        Subscription(frozenset({"t"}), sharing="keys", slots=8),
        Subscription(frozenset({"t"})),
    )
    assert eight.claims("t/0#8")
    assert not eight.claims("t/0#16")
    assert not eight.claims("u/0#8")
    assert not eight.claims("t")
    assert whole.claims("t")
    assert not whole.claims("t/0#8")
    assert not Subscription(pattern=".*").claims("t/0#8")
    assert Subscription.decode(eight.encode()) == eight
    assert Subscription(frozenset({"t"}), sharing="keys", slots=8, prefer=("t/0",)).likes(
        ("t/0#8", 3)
    )


def test_slots_go_to_members_of_their_number() -> None:
    members = {
        "a": Subscription(frozenset({"t"}), sharing="keys", slots=2),
        "b": Subscription(frozenset({"t"}), sharing="keys", slots=4),
    }
    (units,) = shares_of(members, {("t/0#2", 0): None, ("t/0#2", 1): None}).classes()
    assert units.members == ["a"]


def test_whole_topics_are_not_shared_by_keys() -> None:
    with pytest.raises(ConfigurationError, match="claim_entire_topic"):
        Subscription(frozenset({"t"}), entire_topics=True, sharing="keys", slots=8)


def test_slots_of_one_topic() -> None:
    assert slot_of("t/7#16", 15) == Slot("t", 7, 15, 16)
