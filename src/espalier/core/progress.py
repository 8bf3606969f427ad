"""Progress of long work, given to one callback: a bar, a log or nothing."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How far a stage is: `done` of `total` (0 where it cannot be counted) and what was finished last."""

    stage: str
    done: int = 0
    total: int = 0
    message: str = ""


OnProgress = Callable[[Progress], None]


def count_calls(on_progress: OnProgress, stage: str, total: int) -> Callable[[object], None]:
    """Return a callback that is called before each of `total` steps of a stage, and reports those done."""
    done = -1

    def report(_: object) -> None:
        nonlocal done
        done += 1
        on_progress(Progress(stage, done, total))

    return report


def ignore(progress: Progress) -> None:
    """Do nothing: the default callback."""
