"""The entry point of the `nearcast` command, and of `python -m nearcast`."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from nearcast.cli.app import app
    except ModuleNotFoundError as missing:
        if missing.name not in ("rich", "typer"):
            raise
        sys.exit("error: the command line needs typer and rich: pip install 'nearcast[cli]'")
    app()


if __name__ == "__main__":
    main()
