"""`python -m harvest.cli`."""

from harvest.cli.app import main

main()
