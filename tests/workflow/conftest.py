"""Children without processes, for the tests of how a run goes."""

from in_process import children

__all__ = ["children"]
