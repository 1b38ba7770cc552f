"""The mark scheduler where rows are set aside (specs/HARVEST.md §11) and where it is stopped, one
decision after the other; and what a checkpoint looks like (§4)."""

from __future__ import annotations

import pytest

from harvest.core import mark as m
from harvest.core.dead_letters import BadRow, Key
from harvest.core.failure import Failure
from harvest.core.mark_checkpoint import Checkpoint, Term
from harvest.core.row import Row
from harvest.errors import CheckpointError

TERM = Term.of(1)
LIMITS = m.Limits(io_error_backoff_ms=100)
NO_KEY = Row(2, "t", None, b"v")


def rows(*ids: int) -> list[Row]:
    return [Row(i, "t", b"k", b"v") for i in ids]


def running() -> m.MarkScheduler:
    """A scheduler that has opened, and whose first mark, number 0, is under way."""
    scheduler = m.MarkScheduler(7, LIMITS)
    assert not scheduler.running
    assert scheduler.step(m.Start()) == [m.Open(0)]
    (mark,) = scheduler.step(m.Opened(TERM, None))
    assert isinstance(mark, m.Mark)
    assert scheduler.running
    return scheduler


def setting_aside() -> m.MarkScheduler:
    """The same: mark 0 has returned 1, 2 and 3, and 2 is being set aside."""
    scheduler = running()
    (add,) = scheduler.step(m.Marked(0, [*rows(1), NO_KEY, *rows(3)]))
    assert isinstance(add, m.AddDeadLetters)
    assert add.term == TERM
    ((bad, error, waits),) = add.rows
    assert (bad, waits) == (2, False)
    assert "the key is NULL" in error
    return scheduler


# --- Rows that are set aside ---


def test_a_bad_row_is_aside_before_the_others_of_its_mark_are_sent() -> None:
    scheduler = setting_aside()
    send, mark = scheduler.step(m.DeadLettersAdded(frozenset({2})))
    assert isinstance(send, m.Send)
    assert send.rows == rows(1, 3)
    assert isinstance(mark, m.Mark)


def test_of_nothing_but_bad_rows_nothing_is_sent() -> None:
    scheduler = running()
    scheduler.step(m.Marked(0, [NO_KEY]))
    (mark,) = scheduler.step(m.DeadLettersAdded(frozenset({2})))
    assert isinstance(mark, m.Mark)


def test_a_bad_row_that_was_not_moved_is_not_ours_to_send() -> None:
    scheduler = setting_aside()
    send, _ = scheduler.step(m.DeadLettersAdded(frozenset()))
    assert isinstance(send, m.Send)
    assert send.rows == rows(1, 3)


def test_what_could_not_be_set_aside_is_marked_again_in_a_new_term() -> None:
    assert setting_aside().step(m.AddFailed()) == [m.Open(100)]


def test_a_row_that_waits_for_one_that_was_retried_is_marked_again_with_it_at_once() -> None:
    scheduler = m.MarkScheduler(7, LIMITS)
    scheduler.step(m.Start())
    scheduler.step(m.Opened(TERM, None, {("t", b"k"): 3}))
    (add,) = scheduler.step(m.Marked(0, rows(5)))
    assert isinstance(add, m.AddDeadLetters)
    assert [(row.id, row.waits) for row in add.rows] == [(5, True)]
    assert scheduler.step(m.DeadLettersAdded(frozenset())) == [m.Open(0)]


def test_it_is_also_marked_again_when_bad_rows_of_the_same_mark_were_moved() -> None:
    scheduler = m.MarkScheduler(7, LIMITS)
    scheduler.step(m.Start())
    scheduler.step(m.Opened(TERM, None, {("t", b"k"): 1}))
    (add,) = scheduler.step(m.Marked(0, [NO_KEY, *rows(5)]))
    assert isinstance(add, m.AddDeadLetters)
    assert [(row.id, row.waits) for row in add.rows] == [(2, False), (5, True)]
    assert scheduler.step(m.DeadLettersAdded(frozenset({2}))) == [m.Open(0)]


def test_a_row_whose_key_waits_no_more_when_others_are_set_aside_is_sent() -> None:
    scheduler = m.MarkScheduler(7, LIMITS)
    scheduler.step(m.Start())
    scheduler.step(m.Opened(TERM, None, {("t", b"k"): 3}))
    scheduler.step(m.Marked(0, [NO_KEY]))
    retried: dict[Key, int] = {}  # by somebody, while row 2 was being set aside
    (mark,) = scheduler.step(m.DeadLettersAdded(frozenset({2}), retried))
    assert isinstance(mark, m.Mark)
    send, _ = scheduler.step(m.Marked(mark.batch, rows(5)))
    assert isinstance(send, m.Send)
    assert send.rows == rows(5)


def test_a_row_whose_key_waits_since_others_were_set_aside_waits_too() -> None:
    scheduler = running()
    scheduler.step(m.Marked(0, [NO_KEY]))
    (mark,) = scheduler.step(m.DeadLettersAdded(frozenset({2}), {("t", b"k"): 3}))
    assert isinstance(mark, m.Mark)
    (add,) = scheduler.step(m.Marked(mark.batch, rows(5)))
    assert isinstance(add, m.AddDeadLetters)
    assert [(row.id, row.waits) for row in add.rows] == [(5, True)]


def test_what_the_sink_refused_is_aside_before_the_sink_is_opened_again() -> None:
    scheduler = running()
    _, mark = scheduler.step(m.Marked(0, rows(1, 2)))
    assert isinstance(mark, m.Mark)
    refused = Failure("too large", frozenset({1, 2}), {2: "2 is too large"}, frozenset({2}))
    assert scheduler.step(m.Settled((0,), refused)) == [], "a mark is under way"
    add = m.AddDeadLetters(TERM, (BadRow(2, "2 is too large"),))
    assert scheduler.step(m.Marked(mark.batch, ())) == [add]
    assert scheduler.step(m.DeadLettersAdded(frozenset({2}))) == [m.Open(0)], "the cause is gone"


def test_if_nothing_was_moved_the_next_attempt_waits() -> None:
    scheduler = running()
    _, mark = scheduler.step(m.Marked(0, rows(1)))
    assert isinstance(mark, m.Mark)
    scheduler.step(m.Settled((0,), Failure("too large", frozenset({1}), {}, frozenset({1}))))
    scheduler.step(m.Marked(mark.batch, ()))
    assert scheduler.step(m.DeadLettersAdded(frozenset())) == [m.Open(100)]


def test_failures_in_a_row_wait_longer_and_a_success_ends_the_row() -> None:
    scheduler = running()
    assert scheduler.step(m.MarkFailed(0)) == [m.Open(100)]
    assert scheduler.step(m.OpenFailed()) == [m.Open(200)]
    scheduler.step(m.Opened(Term.of(2), None))
    assert scheduler.step(m.MarkFailed(0)) == [m.Open(400)], "to be opened is no success"
    scheduler.step(m.Opened(Term.of(3), None))
    scheduler.step(m.Marked(0, rows(1)))
    assert scheduler.step(m.Settled((0,))) == [m.Purge([1], [Term.of(3).tag(0)])]
    scheduler.step(m.Purged())
    assert scheduler.step(m.MarkFailed(0)) == [m.Open(100)]


def test_after_a_failure_it_works_when_rows_are_published_or_there_are_none() -> None:
    """To be opened is not enough: who may not mark a row opens, and fails, again and again."""
    scheduler = running()
    scheduler.step(m.MarkFailed(0))
    scheduler.step(m.Opened(Term.of(2), None))
    assert not scheduler.running
    scheduler.step(m.Marked(0, rows(1)))
    scheduler.step(m.Marked(1, ()))
    assert not scheduler.running, "the row is on its way"
    scheduler.step(m.Settled((0,)))
    assert scheduler.running
    scheduler.step(m.Purged())
    scheduler.step(m.MarkFailed(2))
    scheduler.step(m.Opened(Term.of(3), None))
    assert not scheduler.running
    scheduler.step(m.Marked(0, ()))
    assert scheduler.running
    assert scheduler.step(m.MarkFailed(1)) == [m.Open(100)]


def test_after_a_failure_meanwhile_nothing_is_sent() -> None:
    scheduler = running()
    _, mark = scheduler.step(m.Marked(0, rows(1)))
    assert isinstance(mark, m.Mark)
    (_,) = scheduler.step(m.Marked(mark.batch, [NO_KEY, *rows(3)]))
    assert scheduler.step(m.Settled((0,), Failure("unknown"))) == []
    assert scheduler.step(m.DeadLettersAdded(frozenset({2}))) == [m.Open(100)]


# --- The end ---


def test_a_stop_while_rows_are_marked_waits_until_they_are_handed_back() -> None:
    scheduler = running()
    assert scheduler.step(m.Stop()) == []
    assert scheduler.step(m.Marked(0, rows(1, 3))) == [m.Reset((1, 3), TERM.tag(0))]
    assert scheduler.step(m.ResetDone()) == [m.Finish("stopped")]


def test_a_stop_while_rows_are_set_aside_hands_back_the_others() -> None:
    scheduler = setting_aside()
    assert scheduler.step(m.Stop()) == []
    assert scheduler.step(m.DeadLettersAdded(frozenset({2}))) == [m.Reset((1, 3), TERM.tag(0))]
    assert scheduler.step(m.ResetDone()) == [m.Finish("stopped")]


def test_a_stop_before_anything_began_is_the_end() -> None:
    assert m.MarkScheduler(7).step(m.Stop()) == [m.Finish("stopped")]


@pytest.mark.parametrize("answer", [m.OpenFailed(), m.Opened(TERM, None)])
def test_a_stop_while_the_sink_is_being_opened_waits_for_that(answer: m.Event) -> None:
    scheduler = m.MarkScheduler(7)
    scheduler.step(m.Start())
    assert scheduler.step(m.Stop()) == []
    assert scheduler.step(answer) == [m.Finish("stopped")]


@pytest.mark.parametrize("answer", [m.Cleared(), m.ClearFailed()])
def test_a_stop_while_published_rows_are_deleted_waits_for_that(answer: m.Event) -> None:
    scheduler = m.MarkScheduler(7)
    scheduler.step(m.Start())
    scheduler.step(m.Opened(TERM, Checkpoint(6, Term.of(2), 1, 1, 2)))
    assert scheduler.step(m.Stop()) == []
    assert scheduler.step(answer) == [m.Finish("stopped")]


def test_a_purge_that_fails_while_stopping_leaves_the_rows_to_the_next_leader() -> None:
    scheduler = running()
    _, mark = scheduler.step(m.Marked(0, rows(1)))
    assert isinstance(mark, m.Mark)
    send, last = scheduler.step(m.Marked(mark.batch, rows(2)))
    assert isinstance(send, m.Send)
    assert isinstance(last, m.Mark)
    assert scheduler.step(m.Settled((0,))) == [m.Purge([1], [TERM.tag(0)])]
    scheduler.step(m.Stop())
    assert scheduler.step(m.Marked(last.batch, ())) == []
    assert scheduler.step(m.PurgeFailed()) == []
    assert scheduler.step(m.Settled((send.batch,))) == [m.Finish("stopped")]
    assert scheduler.in_flight_records == 0


# --- Tags and checkpoints ---


def test_the_tags_of_a_term_are_one_interval() -> None:
    tags = [TERM.tag(n) for n in (0, 1, 2, 1_000_000)]
    assert tags == sorted(tags)
    assert (TERM.first, TERM.last > tags[-1]) == (tags[0], True)
    assert all(tag.version == 8 for tag in tags)
    assert not TERM.first <= Term.of(2).tag(5) <= TERM.last
    with pytest.raises(ValueError, match="batch is -1"):
        TERM.tag(-1)


def test_a_checkpoint_is_read_as_it_was_written() -> None:
    checkpoint = Checkpoint(6, Term.of(2**59 + 5), 2**40, 1, 2**62)
    assert Checkpoint.decode(checkpoint.encode()) == checkpoint
    assert len(checkpoint.encode()) < 200


@pytest.mark.parametrize("text", ["", "{}", "[1,2]", '[2,1,"00",1,1,1]', '[1,1,"x",1,1,1]'])
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match="own group"):
        Checkpoint.decode(text)
