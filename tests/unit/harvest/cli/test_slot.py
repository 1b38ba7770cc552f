"""`harvest slot`: what it says of a slot, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from harvest.cli import slot
from harvest.cli.app import app
from harvest.core.wal_slot import SlotHealth, SlotState
from harvest.errors import ConfigurationError
from harvest.runtime.slot_changes import Renewal

THERE = SlotState("harvest_shop", confirmed_lsn=0x1_0000_0010)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "reaper.yaml"
    path.write_text(
        "kafka: {bootstrap.servers: 'b:1'}\ndatabase: host=d\ngroup: g\nmode: wal\n",
        encoding="utf-8",
    )
    return path


class Source:
    """A slot that is as it is said to be; it notes that it was closed."""

    def __init__(self, state: SlotState | None, health: SlotHealth) -> None:
        self.slot = SimpleNamespace(state=lambda: state, name="harvest_shop")
        self._health = health
        self.closed = False

    def health(self) -> SlotHealth:
        return self._health

    def close(self) -> None:
        self.closed = True


def show(
    monkeypatch: pytest.MonkeyPatch, config: Path, source: Source, *options: str
) -> tuple[int, str]:
    monkeypatch.setattr(slot, "make_wal_source", lambda _: source)
    done = CliRunner().invoke(app, ["slot", "show", "-c", str(config), *options])
    assert source.closed
    return done.exit_code, done.stdout


def test_a_slot_is_shown_with_what_it_costs(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    def source(safe_bytes: int | None = 900) -> Source:
        return Source(THERE, SlotHealth(True, False, True, 700, 80, safe_bytes))

    assert show(monkeypatch, config, source()) == (
        0,
        "harvest_shop, at 1/10; 700 bytes of log are kept for it, 80 are not harvested, lost after "
        "900 bytes more\n",
    )
    assert show(monkeypatch, config, source(0))[1].endswith(", lost after 0 bytes more\n")
    assert show(monkeypatch, config, source(None))[1].endswith("80 are not harvested\n")
    code, said = show(monkeypatch, config, source(), "--json")
    assert (code, json.loads(said)) == (
        0,
        {
            "slot": "harvest_shop",
            "exists": True,
            "lost": False,
            "active": True,
            "confirmed_lsn": "1/10",
            "pinned_bytes": 700,
            "behind_bytes": 80,
            "safe_bytes": 900,
        },
    )


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "harvest_shop: there is none\n"),
        (SlotState("harvest_shop", wal_status="lost", why_lost="wal_removed"), "(wal_removed); "),
    ],
)
def test_a_slot_that_is_missing_or_lost_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, config: Path, state: SlotState | None, said: str
) -> None:
    health = SlotHealth(state is not None, lost=True)
    code, text = show(monkeypatch, config, Source(state, health))
    assert code == 1
    assert said in text
    code, text = show(monkeypatch, config, Source(state, health), "--json")
    found = json.loads(text)
    assert (code, found["lost"], found["exists"]) == (1, True, state is not None)


class Renewals:
    """Notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, config: object, **options: Any) -> Renewal:
        del config
        self.asked.append(options)
        return Renewal(THERE, 3, None if options["dry_run"] else "0/99")


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> Renewals:
    made = Renewals()
    monkeypatch.setattr(slot, "renew_slot", made)
    monkeypatch.setattr(slot, "check_registration", lambda *_, **__: None)
    return made


def renew(config: Path, *options: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["slot", "renew", "-c", str(config), *options])
    return done.exit_code, done.output


def test_who_renews_a_slot_says_what_becomes_of_the_gap(renewals: Renewals, config: Path) -> None:
    for options in ([], ["--publish-table", "--begin-now"]):
        code, said = renew(config, *options)
        assert code == 2
        assert "either --publish-table or --begin-now" in said
    assert renewals.asked == []


def test_a_slot_is_renewed_as_it_was_asked_for(renewals: Renewals, config: Path) -> None:
    assert renew(config, "--publish-table", "--after", "0") == (
        0,
        "before: harvest_shop, at 1/10\n3 rows were published from the table\nit goes on at 0/99\n",
    )
    assert renew(config, "--begin-now", "--dry-run") == (
        0,
        "before: harvest_shop, at 1/10\n3 rows would be published from the table\n",
    )
    assert json.loads(renew(config, "--begin-now", "--json")[1]) == {
        "dry_run": False,
        "published": 3,
        "begins_at": "0/99",
    }
    assert renewals.asked == [
        {"publish_table": True, "after": 0, "dry_run": False},
        {"publish_table": False, "after": None, "dry_run": True},
        {"publish_table": False, "after": None, "dry_run": False},
    ]


def test_the_slot_of_other_harvesters_is_not_dropped(
    renewals: Renewals, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots are not named after groups: those who read it would hold a claim that is not asked."""

    def refuse(*_: object, **__: object) -> None:
        raise ConfigurationError("it is harvested with group 'h' and not 'g'")

    monkeypatch.setattr(slot, "check_registration", refuse)
    code, said = renew(config, "--begin-now")
    assert code == 2
    assert "and not 'g'" in said
    assert renewals.asked == []


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_registers_nobody(
    renewals: Renewals, config: Path, monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    asked: list[bool] = []

    def check(*_: object, dry_run: bool = False) -> None:
        asked.append(dry_run)

    monkeypatch.setattr(slot, "check_registration", check)
    renew(config, "--begin-now", *(["--dry-run"] if dry_run else []))
    assert asked == [dry_run] == [options["dry_run"] for options in renewals.asked]
