"""Whether the hub can be reached: asked once, so that a wrong name costs a moment and not half a minute."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

TIMEOUT = 4.0  # seconds for an answer of any kind
REMEMBERED = 60.0  # seconds
UNREACHABLE = "the hub cannot be reached (and nothing of this name was downloaded earlier)"
_asked: list[tuple[float, bool]] = []  # when, and the answer


def is_reachable() -> bool:
    """Return whether the hub answers; False in offline mode. An answer is remembered for a minute."""
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return False
    if not _asked or time.monotonic() - _asked[-1][0] > REMEMBERED:
        try:
            get_session().head(constants.ENDPOINT, timeout=TIMEOUT)
            found = True
        except Exception:  # each way of not being connected has a type of its own
            found = False
        _asked[:] = [(time.monotonic(), found)]
    return _asked[-1][1]


@contextmanager
def hub_access() -> Iterator[bool]:
    """Yield whether something can be asked for on the hub; if not, only caches are read inside.

    Without this, libraries of the hub repeat every request for many seconds.
    """
    from huggingface_hub import constants

    if is_reachable():
        yield True
        return
    places = [constants, *(m for m in [sys.modules.get("datasets.config")] if m)]
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    try:
        yield False
    finally:
        for place, value in zip(places, before):
            place.HF_HUB_OFFLINE = value  # type: ignore[attr-defined]
