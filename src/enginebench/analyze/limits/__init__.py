"""How far an engine is from what the machine can do: layers, the nodes that they were made of, and their bounds.

Lives here: times held against work. May not be here: readers of graphs, microbenchmarks.
"""
