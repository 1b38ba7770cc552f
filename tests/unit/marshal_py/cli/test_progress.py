"""A command that reads a long log says how far it is."""

from __future__ import annotations

import pytest

from marshal_py.cli.progress import LogProgress


def test_who_waits_for_two_seconds_is_told_every_two(capsys: pytest.CaptureFixture[str]) -> None:
    now_s = 100.0
    progress = LogProgress(lambda: now_s)
    for done, now_s in enumerate((101.9, 102.0, 103.9, 104.0, 106.0)):  # noqa: B007
        progress(done * 1_000, 4_000)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "read 1,000 of 4,000 records of the log (25%)",
        "read 3,000 of 4,000 records of the log (75%)",
    ]
    now_s = 200.0
    progress(0, 4_000)
    assert capsys.readouterr().err == "", "it had been at the end"
