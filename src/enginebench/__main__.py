"""`python -m enginebench`."""

from enginebench.door import main

if __name__ == "__main__":
    main()
