"""The `marshal` command: one module a command.

`app` puts them together; `framework` has what they share: connection flags, tables, exit codes.
"""
