"""One job in one process: jobs and answers as data, how a process is started and watched, and the work of each job."""
