"""PostgreSQL: mark and range mode, dead letters, partitions, notifications."""
