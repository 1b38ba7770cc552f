"""Text of a database in another encoding than UTF-8, converted value by value.

A stream of the log is converted by the server, which ends it at a text that it cannot convert, and
again wherever it is begun anew. So that one is read as it is stored, and converted here: as the
server would do it, which is asked, for it knows encodings and versions of them that Python does
not.
"""

from __future__ import annotations

from functools import lru_cache

import psycopg

__all__ = ["Converter"]


class Converter:
    """Converts text of the database of `conninfo`. Connects when it is first needed."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._connection: psycopg.Connection[tuple[bytes]] | None = None
        self.to_utf8 = lru_cache(1_024)(self._to_utf8)

    def _to_utf8(self, text: bytes) -> bytes:
        """In UTF-8. Raises ValueError for what cannot be, psycopg's errors of the connection."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._conninfo, autocommit=True)
        connection = self._connection
        if connection.info.parameter_status("server_encoding") == "SQL_ASCII":
            return text.decode().encode()  # of which PostgreSQL knows nothing
        query = "SELECT convert(%s, getdatabaseencoding(), 'UTF8')"
        try:
            found = connection.execute(query, (text,), binary=True).fetchone()
        except psycopg.DataError as error:
            raise ValueError(" ".join(str(error).split())) from error
        assert found is not None  # noqa: S101 - one row
        return found[0]

    def close(self) -> None:
        """Close the connection. The next use connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
