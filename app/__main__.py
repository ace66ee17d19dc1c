"""Where the program begins: whoever leaves it with Ctrl+C before all of it is loaded sees no traceback either."""

from __future__ import annotations

import sys

INTERRUPTED = 130
"""The exit code after Ctrl+C, as shells have it."""


def main() -> int:
    """Run the command line; returns the exit code."""
    try:
        from app import cli

        return cli.main()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
