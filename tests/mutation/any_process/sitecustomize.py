"""What Python imports when it starts: with the bug that MUTANT names, in each process of a test."""

from __future__ import annotations

from tests.mutation.find import plant

plant()
