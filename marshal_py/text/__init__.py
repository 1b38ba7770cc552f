"""Version 1 of the protocol, as Go Marshal speaks it: `Marshal(..., wire="text")`.

specs/INTEROP.md says what a group of Go and Python clients can rely on.
"""
