"""Commands that end with the program that started them, even where that is killed."""

import shutil
from collections.abc import Sequence

__all__ = ["no_orphan"]


def no_orphan(argv: Sequence[str], signal: str = "TERM") -> list[str]:
    """Have a command be sent a signal when the thread that starts it is gone.

    Parameters
    ----------
    argv : sequence of str
        The command. Its process is the same; its children are its own to end.
    signal : str
        The signal's name: TERM for what then stops in order.
    """
    setpriv = shutil.which("setpriv")
    return [*([setpriv, "--pdeathsig", signal] if setpriv else []), *argv]
