"""Times, durations, numbers and names as text, and what options say of times."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from rich.markup import escape

from marshal_py.errors import InvalidArgument
from marshal_py.printable import printable

__all__ = [
    "age",
    "clock_time",
    "count",
    "iso_utc",
    "liveness_style",
    "parse_duration",
    "parse_moment",
    "parse_since",
    "safe",
    "week_day",
    "zone",
]

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_LAST_MS: Final = 253_402_128_000_000
"""A day before the last of Python's calendar: it can be told in all time zones. A record may say a
later time, such as the largest number there is for a pause without an end: it is told as this."""
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def age(ms: float) -> str:
    """Return a duration in two figures or so: 0.4 s, 12 s, 3.5 min, 7 h, 12 d."""
    for limit, unit, name in (
        (1_000, 1, "ms"),
        (60_000, 1_000, "s"),
        (3_600_000, 60_000, "min"),
        (2 * 86_400_000, 3_600_000, "h"),
    ):
        if ms < limit:
            value = ms / unit
            digits = 1 if value < 10 and name != "ms" else 0
            return f"{value:.{digits}f} {name}"
    return f"{ms / 86_400_000:.0f} d"


def count(number: int, what: str) -> str:
    """Return '1 record', '2,345 records'."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def iso_utc(ms: int) -> str:
    """Return a time in ms since 1970 as 2026-11-21T12:00:00.123Z."""
    moment = dt.datetime.fromtimestamp(min(ms, _LAST_MS) / 1000, dt.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock_time(ms: int, *, date: bool = False) -> str:
    """Return the local time of day, with milliseconds; with `date`, the day before it."""
    ms = min(ms, _LAST_MS)
    moment = _local(ms)
    text = f"{moment:%H:%M:%S}.{ms % 1000:03d}"
    return f"{moment:%Y-%m-%d} {text}" if date else text


def week_day(ms: int) -> str:
    """Return the local day of a time in ms since 1970: Saturday, 2026-11-21."""
    return f"{_local(ms):%A, %Y-%m-%d}"


def _local(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(min(ms, _LAST_MS) / 1000).astimezone()


def zone(ms: int) -> str:
    """Return the local time zone at a time in ms since 1970: 'CET, UTC+01:00', or 'UTC'."""
    moment = _local(ms)
    name = f"{moment:%Z}"
    return name if name == "UTC" else f"{name}, UTC{moment.isoformat()[-6:]}"


def liveness_style(liveness: str | None) -> str:
    """Return a liveness in rich's markup: green, yellow or red."""
    colour = {"fresh": "green", "unknown": "yellow", "stale": "red"}.get(liveness or "")
    return f"[{colour}]{liveness}[/]" if colour else ""


def safe(text: str) -> str:
    """Return text from the log for rich: nothing in it is markup, or moves the cursor."""
    return escape(printable(text))


def parse_since(text: str, now_ms: int) -> tuple[int | None, int | None]:
    """Return (offset, None) or (None, ms since 1970) for what `--since` was given.

    An offset (`1500`), or what `parse_moment` takes. Raises `InvalidArgument`.
    """
    if text.strip().isdecimal():
        return int(text), None
    moment_ms = _moment(text.strip(), now_ms)
    if moment_ms is None:
        raise InvalidArgument(
            f"--since {text!r} is neither an offset (1500), a duration (10m, 2h), nor a time "
            "(14:05, 2026-11-21T14:05:00Z)"
        )
    return None, moment_ms


def parse_moment(text: str, now_ms: int, option: str = "--at") -> int:
    """Return the ms since 1970 of what an option that takes a moment was given.

    A duration before now (`90s`, `10m`, `2h`, `1d`), a time of day (`02:13`, local; the last one:
    of yesterday if it has not come yet today), or a date and time (`2026-11-21T14:05:00Z`; local if
    it has no zone). Raises `InvalidArgument`.
    """
    moment_ms = _moment(text.strip(), now_ms)
    if moment_ms is None:
        raise InvalidArgument(
            f"{option} {text!r} is neither a time (02:13, 2026-11-21T02:13:00Z) nor a duration "
            "before now (10m, 2h)"
        )
    return moment_ms


def parse_duration(text: str, option: str) -> int:
    """Return a duration (`500ms`, `90s`, `10m`, `2h`, `1d`) in ms. Raises `InvalidArgument`."""
    found = _AGO.fullmatch(text.strip())
    if found is None:
        raise InvalidArgument(f"{option} {text!r} is no duration (500ms, 90s, 10m, 2h, 1d)")
    return int(float(found[1]) * _UNIT_MS[found[2]])


def _moment(text: str, now_ms: int) -> int | None:
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(0, now_ms - int(float(ago[1]) * _UNIT_MS[ago[2]]))
    try:
        return _ms(dt.datetime.fromisoformat(text))
    except ValueError:
        pass
    try:
        time_of_day = dt.time.fromisoformat(text)
    except ValueError:
        return None
    today = dt.datetime.fromtimestamp(now_ms / 1000).date()
    found_ms = _ms(dt.datetime.combine(today, time_of_day))
    if found_ms > now_ms:
        found_ms = _ms(dt.datetime.combine(today - dt.timedelta(days=1), time_of_day))
    return found_ms


def _ms(moment: dt.datetime) -> int:
    return max(0, int(moment.timestamp() * 1000))
