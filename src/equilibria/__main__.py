"""`python -m equilibria`: the same as `equilibria`."""

from equilibria.run.cli.main import entry

if __name__ == "__main__":
    entry()
