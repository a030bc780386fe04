"""What a child does for each job: one file a job, imported in the child alone.

Lives here: the work behind the jobs of `jobs.py`. May not be here: anything of `runs` outside `child`.
"""
