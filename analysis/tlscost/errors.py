"""The one exception that the program turns into a message and an exit code."""

__all__ = ["TlscostError"]


class TlscostError(Exception):
    """A failure whose message names the thing, the place, what was expected and the remedy.

    Parameters
    ----------
    message : str
        What the user reads.
    exit_code : int
        1 a measurement failed, 2 bad input, 3 this machine cannot do it.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code
