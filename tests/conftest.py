"""What holds for all tests.

Fixtures, from the top: `kafka`, `kafka_topic`, `postgres` and `postgres_database` come from the
package's own pytest plugin (marshal_py/embedded/pytest_plugin.py); those of a folder are in its
conftest.py (integration, contract, interop, spark). `python -m pytest --fixtures FOLDER` lists all.

Hypothesis runs 200 examples of a property, and with MARSHAL_HYPOTHESIS=thorough far more.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
settings.register_profile("ci", max_examples=200, deadline=None, suppress_health_check=_QUIET)
settings.register_profile(
    "thorough", max_examples=5000, deadline=None, suppress_health_check=_QUIET
)
settings.load_profile(os.environ.get("MARSHAL_HYPOTHESIS", "ci"))
