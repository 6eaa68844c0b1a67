"""tlscost: from records of hardware counters to what a TLS transaction costs."""

__all__ = ["__version__"]

__version__ = "0.1.0"
"""The project's; CMakeLists.txt has it for the programs in C."""
