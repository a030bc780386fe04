"""What functions return, and what they are given: `Run`, `Bench`, tables, progress; models and sides as texts."""
