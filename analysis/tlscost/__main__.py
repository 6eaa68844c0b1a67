"""`python -m tlscost`: what the launcher runs."""

from tlscost.cli import main

if __name__ == "__main__":
    main()
