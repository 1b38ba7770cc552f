"""Connection strings: as libpq reads them, and those of Go's lib/pq for it."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from harvest.errors import ConfigurationError

__all__ = ["libpq_conninfo", "parsed_conninfo"]

_UNREADABLE: Final = "dataSource cannot be read: write key=value pairs or a URL"
_PAIR: Final = re.compile(r"\s*([^\s=]+)\s*=\s*('(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)*)", re.DOTALL)
_LIB_PQ_ONLY: Final = {"binary_parameters", "disable_prepared_binary_result"}
_PLACE: Final = re.compile(r"\w+://(?:[^@/?]*@)?[^@?]*(?:\?.*)?", re.DOTALL)
"""A URL with no @ but the one behind the user: what follows another one, or comes behind a slash
before it, is the rest of a password, which libpq takes for the host or the database, and names."""


def parsed_conninfo(conninfo: str, name: str = "the data source") -> dict[str, Any]:
    """What a connection string says, as libpq reads it. `name`: what an error calls it.

    Raises `ConfigurationError`, which shows no part of it: that may be a password.
    """
    why = "ProgrammingError"
    try:
        given: dict[str, Any] = dict(conninfo_to_dict(conninfo))
    except psycopg.ProgrammingError:
        pass  # libpq quotes the part that it cannot read
    else:
        hosts = str(given.get("host", "")).split(",")
        is_url = conninfo.startswith(("postgres://", "postgresql://"))
        # One that begins with @ is a socket in Linux's abstract namespace.
        if not any("@" in host[1:] for host in hosts) and not (
            is_url and _PLACE.fullmatch(conninfo) is None
        ):
            return given
        why = "an @ that is not the one behind the user is written %40"
    raise ConfigurationError(
        f"{name} cannot be read: write key=value pairs or postgresql://… ({why}; percent-encode "
        "special characters in a URL)"
    ) from None


def libpq_conninfo(source: str) -> str:
    """A data source of Go's lib/pq as libpq reads it: the same, but that lib/pq takes any server
    setting (`search_path=billing`) as a key of its own. Raises `ConfigurationError`."""
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    if source.startswith(("postgres://", "postgresql://")):
        try:
            query = urlsplit(source).query
        except ValueError:
            raise ConfigurationError(_UNREADABLE) from None
        pairs = parse_qsl(query, keep_blank_values=True)
        kept, options = _split_off_server_settings(pairs, known)
        if options:
            kept.append(("options", options))
        place = source.partition("?")[0]
        return f"{place}?{urlencode(kept, quote_via=quote)}" if kept else place
    matches = list(_PAIR.finditer(source))
    if "".join(match[0] for match in matches).strip() != source.strip():
        raise ConfigurationError(_UNREADABLE)
    kept, options = _split_off_server_settings([(m[1], _unquoted(m[2])) for m in matches], known)
    if options:
        kept.append(("options", options))
    try:
        return psycopg.conninfo.make_conninfo("", **dict(kept))
    except psycopg.Error:  # its text may quote what it could not read
        raise ConfigurationError(_UNREADABLE) from None


def _split_off_server_settings(
    pairs: list[tuple[str, str]], known: set[str]
) -> tuple[list[tuple[str, str]], str | None]:
    kept, options = [], []
    for name, value in pairs:
        if name == "options":
            options.append(value)
        elif name in known:
            kept.append((name, value))
        elif name not in _LIB_PQ_ONLY:
            escaped = value.replace("\\", "\\\\").replace(" ", "\\ ")
            options.append(f"-c {name}={escaped}")
    return kept, " ".join(options) or None


def _unquoted(text: str) -> str:
    inner = text[1:-1] if text.startswith("'") else text
    return re.sub(r"\\(.)", r"\1", inner, flags=re.DOTALL)
