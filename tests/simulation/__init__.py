"""Deterministic simulation of the protocol's real code, under faults (tests/simulation/README is
the docstring of `simulator`). Run it: ``python -m tests.simulation --histories 1000``."""
