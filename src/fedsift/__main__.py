"""`python -m fedsift` and `fedsift`: Ctrl-C leaves no traceback, even while importing modules."""

import sys


def main() -> None:
    try:
        from fedsift import cli

        cli.main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
