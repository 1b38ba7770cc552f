"""A pytest plugin: ``-p tests.mutation.plugin``, with the mutant's name, or nothing, in MUTANT."""

from __future__ import annotations

import os

from tests.mutation.find import find
from tests.mutation.load import install

if os.environ["MUTANT"]:
    _mutant = find(os.environ["MUTANT"])
    install(_mutant.module, _mutant.code())
