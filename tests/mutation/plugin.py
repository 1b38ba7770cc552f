"""A pytest plugin: ``-p tests.mutation.plugin``, with the mutant's name, or nothing, in MUTANT.

pytest's own loader rewrites the modules of its plugins, of which this package is one, so the mutant
has to be planted once more when pytest has begun.
"""

from __future__ import annotations

from tests.mutation.find import plant

plant()
