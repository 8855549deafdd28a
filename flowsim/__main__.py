"""The command `flowsim`, and `python -m flowsim`."""

import signal
import sys

from flowsim.cli.prepare import interrupted


def main() -> int:
    """Run one command; returns the exit status."""
    # What parses the command line takes a while to import.
    signal.signal(signal.SIGINT, interrupted)
    from flowsim.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
