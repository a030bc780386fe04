"""EngineBench finds the fastest inference engine that still gives the same answers."""

__version__ = "0.1.0"
