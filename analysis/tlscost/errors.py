"""The one exception that a user sees: a message, and the exit code that goes with it."""

__all__ = ["BAD_INPUT", "CANNOT", "DONE", "FAILED", "INTERRUPTED", "TlscostError"]

DONE = 0
FAILED = 1
BAD_INPUT = 2
CANNOT = 3
INTERRUPTED = 130  # what shells give for SIGINT


class TlscostError(Exception):
    """Something that the user can act on; the command line prints it without a traceback.

    Parameters
    ----------
    message : str
        The thing, the place, what was expected, the remedy.
    exit_code : int
        One of `FAILED`, `BAD_INPUT` and `CANNOT`.
    """

    def __init__(self, message: str, exit_code: int = BAD_INPUT) -> None:
        super().__init__(message)
        self.exit_code = exit_code
