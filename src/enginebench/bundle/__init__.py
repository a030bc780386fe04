"""A row as a folder that runs without EngineBench: what stands in it, how it is written, read and checked.

Lives here: the record `bundle.json`, the programs that are copied into a bundle (`as-shipped/`, which import nothing
of ours), and layouts for servers. May not be here: runs and their folders, engines, and anything that measures.
"""
