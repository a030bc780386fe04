"""Numbers from numbers, pure: summaries, intervals, comparisons, drift."""
