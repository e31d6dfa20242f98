"""`python -m rooflight` is the `rooflight` command."""

from rooflight.cli.main import entry

if __name__ == "__main__":
    entry()
