"""One job in one process: jobs and responses as data, how a process is started and watched, the work of each job."""
