"""OpenVINO on the CPU.

Lives here: the engine, and what only OpenVINO needs. May not be here: other runtimes.
"""
