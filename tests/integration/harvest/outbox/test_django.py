"""The recipe for Django in specs/HARVEST.md §13, as it is written there, on a real database."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.paths import SPECS

pytest.importorskip("django")

RECIPE = SPECS / "HARVEST.md"


def recipe() -> list[str]:
    """The Python blocks of the section."""
    section = RECIPE.read_text().partition("### Django")[2].partition("\n#")[0]
    return [block.partition("```")[0] for block in section.split("```python\n")[1:]]


def test_the_recipe_commits_and_rolls_back_with_the_models(
    tmp_path: Path, postgres_database: str
) -> None:
    migration, use = recipe()
    shop = tmp_path / "shop"
    (shop / "migrations").mkdir(parents=True)
    for folder in (shop, shop / "migrations"):
        (folder / "__init__.py").touch()
    (shop / "models.py").write_text(
        "from django.db import models\n"
        "class Order(models.Model):\n"
        "    total = models.IntegerField()\n"
    )
    (shop / "migrations" / "0001_outbox.py").write_text(migration)
    (shop / "orders.py").write_text(use)
    given = conninfo_to_dict(postgres_database)
    program = f"""
        import django
        from django.conf import settings
        settings.configure(INSTALLED_APPS=["shop"], USE_TZ=True, DATABASES={{"default": {{
            "ENGINE": "django.db.backends.postgresql", "NAME": {given["dbname"]!r},
            "USER": {given["user"]!r}, "HOST": {given["host"]!r}, "PORT": {str(given["port"])!r},
        }}}})
        django.setup()
        from django.core.management import call_command
        from django.db import connection, transaction
        call_command("migrate", verbosity=0)
        with connection.schema_editor() as editor:
            from shop.models import Order
            editor.create_model(Order)
        from harvest import NoTransaction, OutboxRecord
        from shop.orders import place_order, stasher
        place_order(120)
        try:
            with transaction.atomic():
                place_order(7)
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        try:
            stasher.stash(connection, OutboxRecord("t", "k"))
        except NoTransaction:
            print("no transaction")
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{RECIPE.parents[1]}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "no transaction\n"
    with psycopg.connect(postgres_database) as connection:
        rows = connection.execute("SELECT kafka_topic, kafka_key, kafka_value FROM outbox")
        ((topic, key, value),) = rows.fetchall()
        orders = connection.execute("SELECT id, total FROM shop_order").fetchall()
    assert orders == [(1, 120)]
    assert (topic, key, value) == ("orders", "1", '{"id":1,"total":120}')
