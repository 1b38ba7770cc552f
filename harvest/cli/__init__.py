"""The `harvest` command: one module a family of commands. `app` puts them together."""
