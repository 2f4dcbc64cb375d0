"""`python -m rocketbed`, and the console script."""

import sys

from rocketbed.cli import main as cli_main


def main() -> None:
    """Run the command line and end with its exit code."""
    sys.exit(cli_main.main())


if __name__ == "__main__":
    main()
