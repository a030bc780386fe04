"""The story: what to run, in what order, each repetition in a process of its own."""
