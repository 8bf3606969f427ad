"""What a killed write left beside its target. It is told, never deleted: it may be the only copy there is."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from uuid import uuid4

log = logging.getLogger("espalier")


def beside(target: Path, what: str = "") -> Path:
    """A new name beside the target; `what` says what it holds."""
    return target.with_name(f".{target.name}.{what}{uuid4().hex[:8]}")


def leftovers(target: Path) -> list[Path]:
    """Names that `beside` gave and that are still there, the oldest first."""
    target = target.resolve()
    ours = re.compile(rf"\.{re.escape(target.name)}\.(old\.)?[0-9a-f]{{8}}")
    try:
        found = [p for p in target.parent.iterdir() if ours.fullmatch(p.name)]
        return sorted(found, key=lambda p: p.lstat().st_mtime)
    except OSError:  # no such parent, or gone while we looked
        return []


def tell(target: Path) -> None:
    for path in leftovers(target):
        log.warning(
            "%s is what a killed write left, unless another program is writing there now. "
            "Nothing deletes it but you",
            path,
        )
