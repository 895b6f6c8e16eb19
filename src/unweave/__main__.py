"""`python -m unweave`, which is also how torchrun starts it."""

import sys

from unweave.cli import main

if __name__ == "__main__":
    sys.exit(main())
