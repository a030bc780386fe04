"""The work behind the jobs of `jobs.py`, imported in the child alone, and nothing of `runs` outside `child`."""
