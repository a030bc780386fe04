"""ONNX files: what they are, what their inputs want, what work is in them.

Lives here: readers of graphs. May not be here: whatever changes a graph (`precision`) or runs it for its time.
"""
