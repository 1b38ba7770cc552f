"""MariaDB and MySQL: mark and range mode, dead letters, partitions."""
