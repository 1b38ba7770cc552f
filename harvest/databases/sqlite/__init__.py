"""SQLite: mark and range mode, dead letters."""
