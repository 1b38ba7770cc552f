"""Every invariant of the simulations can fail, and is seen to fail (specs/evidence/README.md)."""

from __future__ import annotations

import pytest

from tests.mutation.witnesses import CHECKERS, WITNESSES, Witness, broken_after, invariants


@pytest.mark.parametrize("checker", CHECKERS)
def test_every_invariant_has_a_witness(checker: str) -> None:
    witnessed = [w.invariant for w in WITNESSES if w.checker == checker]
    assert sorted(witnessed) == sorted(invariants(checker))


@pytest.mark.parametrize("witness", WITNESSES, ids=lambda w: f"{w.checker}: {w.invariant}")
def test_the_bugs_of_every_invariant_apply(witness: Witness) -> None:
    for mutant in witness.bugs():
        assert mutant.code()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("witness", WITNESSES, ids=lambda w: f"{w.checker}: {w.invariant}")
def test_the_invariant_is_broken_by_a_bug(witness: Witness) -> None:
    assert broken_after(witness) is not None, witness.name
