"""What holds for all tests.

Fixtures, from the top: `kafka`, `kafka_topic`, `postgres` and `postgres_database` come from the
package's own pytest plugin (marshal_py/embedded/pytest_plugin.py); those of a folder are in its
conftest.py (integration, contract, interop, spark). `python -m pytest --fixtures FOLDER` lists all.

Hypothesis runs 200 examples of a property, the same ones each time: what fails in CI fails
everywhere. MARSHAL_HYPOTHESIS=thorough runs far more, and others each time; what it finds is kept
as an explicit example.

What is tested on MariaDB is tested on MySQL, too, in campaigns: `-m campaign -k mysql`.
"""

from __future__ import annotations

import os
import signal

import pytest
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

_ALSO_ON_MYSQL = [
    pytest.param("mariadb", id=pytest.HIDDEN_PARAM),
    pytest.param("mysql", marks=pytest.mark.campaign),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test on MariaDB is also one on MySQL; one that asks for it by name sees to that itself."""
    if "mariadb" in metafunc.fixturenames:
        metafunc.parametrize("mariadb", _ALSO_ON_MYSQL, indirect=True, scope="session")


@pytest.fixture(scope="session")
def mariadb(request: pytest.FixtureRequest) -> object:
    """MariaDB, or MySQL in its place."""
    return request.getfixturevalue(getattr(request, "param", "mariadb"))
