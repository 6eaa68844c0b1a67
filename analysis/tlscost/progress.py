"""What the user sees of a sweep while it runs: a bar on a terminal, plain lines elsewhere."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bar

__all__ = ["Progress"]


class Progress:
    """Shows what is measured, how many cells are done and how much time is left.

    Writes to standard error only: standard output is for results.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._plain = not self._console.is_terminal or bool(os.environ.get("CI"))
        self._bar = Bar(
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}"),
            console=self._console,
            transient=True,
            disable=self._plain,
        )
        self._task: TaskID | None = None
        self._total = 0
        self._done = 0
        self._seconds: list[float] = []

    @contextmanager
    def of(self, *, total: int, already: int) -> Iterator[None]:
        """Show the bar for a sweep of `total` cells of which `already` have their records."""
        self._total, self._done = total, already
        self.say(f"{total} cells, {already} of them measured already")
        with self._bar:
            self._task = self._bar.add_task("", total=total, completed=already, left="")
            yield
            self._task = None

    def start(self, name: str, attempt: int) -> None:
        """Tell that a cell is being measured."""
        self._update(name if attempt == 1 else f"{name} (attempt {attempt})")

    def finish(self, name: str, *, seconds: float, problem: str | None) -> None:
        """Tell that a cell was measured, or why not."""
        self._seconds.append(seconds)
        if problem is not None:
            self.say(f"{name}: failed: {problem}")
        elif self._plain:
            self.say(f"[{self._done + 1}/{self._total}] {name}: {seconds:.1f} s; {self._left()}")

    def advance(self) -> None:
        """Count one cell as settled."""
        self._done += 1
        self._update(None)

    def say(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        self._console.print(escape(text))

    def _update(self, description: str | None) -> None:
        if self._task is not None:
            self._bar.update(
                self._task, description=description, completed=self._done, left=self._left()
            )

    def _left(self) -> str:
        if not self._seconds:
            return ""
        seconds = sum(self._seconds) / len(self._seconds) * (self._total - self._done)
        return (
            f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"
        )
