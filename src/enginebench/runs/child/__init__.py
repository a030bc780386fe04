"""One job in one process: what the parent asks, how a process is started and watched, and what it does.

Lives here: jobs and answers as data, isolation, the work behind each job. May not be here: what to run, and in
which order (that is the story, one room up), and anything that a verb says to its user.
"""
