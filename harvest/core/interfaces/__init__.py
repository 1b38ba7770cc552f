"""What the algorithms need of databases and sinks, as protocols. Checked by tests/contract."""
