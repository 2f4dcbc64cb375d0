"""`python -m rocketbed`, and the console script."""

import sys


def main() -> None:
    """Run the command line and end with its exit code."""
    words = sys.argv[1:]
    if words[:1] == ["health"]:  # frequent call: without the other commands' library
        from rocketbed.cli.probe import run_plain

        code = run_plain(words[1:])
        if code is not None:
            sys.exit(code)
    from rocketbed.cli import main as cli_main

    sys.exit(cli_main.main(words))


if __name__ == "__main__":
    main()
