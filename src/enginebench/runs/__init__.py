"""The story: what to run, in what order, each trial in a process of its own."""
