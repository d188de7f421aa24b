"""`python -m hopyard` is `hopyard`."""

from hopyard.cli import main

if __name__ == "__main__":
    main()
