"""Databases that tests name in their parameters."""

from __future__ import annotations

from typing import Final

import pytest

MYSQL: Final = pytest.param("mysql", marks=pytest.mark.campaign)
"""Beside `"mariadb"`: real, from packages that CI does not depend on."""
