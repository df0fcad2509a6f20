"""`python -m resemblance` is the command `resemblance`."""

from .cli.main import main

main()
