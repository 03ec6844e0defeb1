"""``python -m kvcs``: the command line."""

from kvcs.cli import main

if __name__ == "__main__":
    main()
