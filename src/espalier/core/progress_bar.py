"""Progress on a terminal: one line with what is done, a bar, a count and the time that is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .progress import OnProgress, Progress
from .terminal import visible

BAR = 16  # cells; the text has the rest of the line


@contextmanager
def progress_bar(screen: Any) -> Iterator[OnProgress]:
    """Give a callback that shows progress on a console of rich; the line is gone afterwards."""
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column
    from rich.text import Text

    class Description(ProgressColumn):
        """The only part that gives way where a line is short."""

        def render(self, task: Any) -> Text:
            return Text(task.description, no_wrap=True, overflow="ellipsis")

    class Count(MofNCompleteColumn):
        """Of what cannot be counted there is none."""

        def render(self, task: Any) -> Text:
            return super().render(task) if task.total else Text()

    def whole() -> Column:
        return Column(no_wrap=True)

    parts = (
        Description(table_column=Column(overflow="ellipsis")),
        BarColumn(bar_width=BAR, table_column=whole()),
        Count(table_column=whole()),
        TimeRemainingColumn(table_column=whole()),
    )
    with Bar(*parts, console=screen, transient=True) as bar:
        line, stage = bar.add_task("", total=None), ""

        def update(now: Progress) -> None:
            nonlocal line, stage
            about = visible(now.message or now.stage, lines=False)
            given: Any = {"description": about, "completed": now.done, "total": now.total or None}
            if now.stage == stage:
                bar.update(line, **given)
            else:  # the time that is left is that of the stage
                bar.remove_task(line)
                line, stage = bar.add_task(**given), now.stage

        yield update
