"""How a run comes up, goes on, and is reported."""

__version__ = "0.1.0"
