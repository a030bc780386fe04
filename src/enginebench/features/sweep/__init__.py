"""Many models on many machines: what a sweep asks for, the store that it fills, and who measures what where.

A group (one model on one kind of machine) is measured in turns on one machine, as a run is. Nothing here knows how a
row is measured: that is `main_job`'s story.
"""
