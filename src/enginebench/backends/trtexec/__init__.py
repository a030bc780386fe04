"""trtexec, NVIDIA's own tool: its command lines by version, its process, its answers.

Lives here: running the program. May not be here: reading its files into figures (`analyze.trtexec`).
"""
