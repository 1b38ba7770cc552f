"""Deterministic simulation and exhaustive exploration of the protocol's real code, under faults.

``python -m tests.simulation --histories 10000`` runs random histories, ``python -m
tests.simulation.explore`` every interleaving of small worlds, and ``python -m tests.mutation``
shows that a missing guard would be noticed.

- `scenario`: what happens in one history, made from one seed;
- `simulator`: runs it; `checks`: the invariants;
- `campaign`: many of them; `shrink`: makes a failing one small, and tells it as a timeline.
"""
