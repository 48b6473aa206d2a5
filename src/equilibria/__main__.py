"""`python -m equilibria`: the same as `equilibria`."""

from equilibria.cli.main import entry

if __name__ == "__main__":
    entry()
