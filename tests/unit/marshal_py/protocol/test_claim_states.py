"""The states of a claim: one table, the same in the specification, and no way round it."""

from __future__ import annotations

import ast

import pytest

from marshal_py.protocol.claim_states import TRANSITIONS, ClaimEvent, ClaimState, next_state
from tests.support.paths import ROOT


def of_the_specification() -> dict[tuple[ClaimState, ClaimEvent], ClaimState]:
    """The table of specs/PROTOCOL.md §5.14."""
    text = (ROOT / "specs/PROTOCOL.md").read_text("utf-8")
    section = text.split("### 5.14 ", 1)[1].split("\n## ", 1)[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    states = [ClaimState(name) for name in lines[0][1:-1]]
    return {
        (state, ClaimEvent(event)): ClaimState(to)
        for event, *cells, _ in lines[2:]
        for state, to in zip(states, cells, strict=True)
        if to != "–"
    }


def test_the_table_is_that_of_the_specification() -> None:
    assert of_the_specification() == TRANSITIONS


def test_what_is_not_in_the_table_is_refused() -> None:
    for state in ClaimState:
        for event in ClaimEvent:
            if (state, event) in TRANSITIONS:
                assert next_state(state, event) is TRANSITIONS[state, event]
            else:
                with pytest.raises(RuntimeError, match=event.value):
                    next_state(state, event)


def test_nothing_follows_the_end_and_every_state_can_be_reached() -> None:
    assert not any(state is ClaimState.ENDED for state, _ in TRANSITIONS)
    reached = {ClaimState.WAITING}
    for _ in ClaimState:
        reached |= {to for (state, _), to in TRANSITIONS.items() if state in reached}
    assert reached == set(ClaimState)


@pytest.mark.parametrize("module", ["claimant", "text/claimant"])
def test_no_state_is_set_past_the_table(module: str) -> None:
    """Only `Holding` assigns a state: when it is made, and in `on`."""
    tree = ast.parse((ROOT / f"marshal_py/protocol/{module}.py").read_text("utf-8"))
    holding = {
        id(node)
        for kind in ast.walk(tree)
        if isinstance(kind, ast.ClassDef) and kind.name == "Holding"
        for node in ast.walk(kind)
    }
    assigned = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "state"
        and isinstance(node.ctx, ast.Store)
        and id(node) not in holding
    ]
    assert not assigned
