"""A pytest plugin: ``-p tests.mutation.plugin`` with MUTANT=name in the environment."""

from __future__ import annotations

import os

from tests.mutation.find import find
from tests.mutation.load import install

_mutant = find(os.environ["MUTANT"])
install(_mutant.module, _mutant.code())
