"""`python -m marshal_py.cli`."""

from marshal_py.cli.app import main

main()
