"""`python -m clew`: the command line."""

from clew.cli.program import main

if __name__ == "__main__":
    main()
