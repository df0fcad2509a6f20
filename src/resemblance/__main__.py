"""`python -m resemblance` is the command `resemblance`."""

from .cli.commands import main

main()
