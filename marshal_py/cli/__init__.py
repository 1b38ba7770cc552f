"""The `marshal` command: parsing of options and printing; the work is done in `marshal_py.admin`.

`app` mounts the commands, one module each. What they share: `command` (connection flags),
`options`, `output` (tables, JSON) and `exit_codes`.
"""
