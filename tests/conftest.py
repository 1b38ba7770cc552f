"""What holds for all tests.

Fixtures, from the top: `kafka`, `kafka_topic`, `postgres` and `postgres_database` come from the
package's own pytest plugin (marshal_py/embedded/pytest_plugin.py); those of a folder are in its
conftest.py (integration, contract, interop, spark). `python -m pytest --fixtures FOLDER` lists all.

Hypothesis runs 200 examples of a property, the same ones each time: what fails in CI fails
everywhere. MARSHAL_HYPOTHESIS=thorough runs far more, and others each time; what it finds is kept
as an explicit example.
"""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
settings.register_profile(
    "ci", max_examples=200, deadline=None, derandomize=True, suppress_health_check=_QUIET
)
settings.register_profile(
    "thorough", max_examples=5000, deadline=None, suppress_health_check=_QUIET
)
settings.load_profile(os.environ.get("MARSHAL_HYPOTHESIS", "ci"))

# What a shell starts in the background ignores Ctrl-C, and so does all that it starts in turn.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
