"""The `harvest` command: parsing of options and printing.

`app` mounts the commands, one module each or one a family. What they share: `options`, and
`outbox`, which finds the outbox that the options name.
"""
