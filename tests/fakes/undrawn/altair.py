"""Stands before the real one on the path of processes whose pictures nobody looks at."""

raise ImportError("absent in this process")
