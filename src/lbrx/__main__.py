"""``python -m lbrx``: the command line."""

from lbrx.cli.main import main

if __name__ == "__main__":
    main()
