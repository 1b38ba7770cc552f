"""What tests share: servers, readers, fakes, strategies, and worlds around the schedulers.

Two modules are developers' commands: ``python -m tests.support.spec`` writes the table of tests in
specs/PROTOCOL.md, ``python -m tests.support.make_vectors`` writes specs/vectors.
"""
