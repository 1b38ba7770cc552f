"""What other members say that they want, where it is not what a consumer of ours would say."""

from __future__ import annotations

import msgspec
import pytest

from marshal_py.errors import ConfigurationError
from marshal_py.protocol.subscription import Subscription

NO_PATTERNS = ["(", "a{99999999999999999999}", "\\U99999999", "(" * 1_000 + ")" * 1_000]


@pytest.mark.parametrize("pattern", NO_PATTERNS)
def test_what_is_no_pattern_is_refused_and_from_others_no_subscription(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="is no regular expression"):
        Subscription(pattern=pattern)
    assert Subscription.decode(msgspec.msgpack.encode({"t": ["t"], "p": pattern})) is None


@pytest.mark.filterwarnings("error")
def test_a_pattern_that_python_warns_of_is_one_where_warnings_are_errors() -> None:
    """Another member's would end this one."""
    found = Subscription.decode(msgspec.msgpack.encode({"t": [], "p": "[[a]--z]*"}))
    assert found is not None
    assert [found.wants(topic) for topic in ("a", "b")] == [False, False]
    assert Subscription(pattern="[[a]b").wants("ab")


def test_an_unknown_key_is_skipped_and_one_that_is_nested_without_end_stops_nobody() -> None:
    def with_depth(depth: int) -> Subscription | None:
        encode = msgspec.msgpack.encode
        given = b"\x82" + encode("t") + encode(["t"]) + encode("x") + b"\x91" * depth + b"\x90"
        return Subscription.decode(given)

    assert with_depth(3) == Subscription(frozenset({"t"}))
    assert with_depth(4_000) is None
