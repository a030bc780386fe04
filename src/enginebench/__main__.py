"""`python -m enginebench`."""

from enginebench.cli import main

if __name__ == "__main__":
    main()
