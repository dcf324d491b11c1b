"""`python -m nearcast`: the same as the `nearcast` command."""

from nearcast.cli.main import main

if __name__ == "__main__":
    main()
