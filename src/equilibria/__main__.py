"""`python -m equilibria`: the same as `equilibria`."""

import sys

from equilibria.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
