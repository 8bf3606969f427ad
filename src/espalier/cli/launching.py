"""The same command in several processes, and one clear sentence if one of them dies."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import typer

from .show import say

PATIENCE = 10.0  # seconds in which the others may end by themselves


def share_work(processes: int | None, threads: int | None) -> None:
    """Start this command again in several processes and end with them; or do nothing, being one of them."""
    if not processes or processes == 1 or "WORLD_SIZE" in os.environ:
        return
    words = _without(sys.argv[1:], "--processes")
    code = _run(words, processes, threads or max(1, (os.cpu_count() or 1) // processes))
    raise typer.Exit(code)


def parted() -> bool:
    """Leave the others, the work being done: true for all but the first, who goes on alone."""
    from ..core import distributed

    rank = distributed.rank()
    distributed.barrier()
    distributed.leave()
    return rank > 0


def _without(words: Sequence[str], option: str) -> list[str]:
    out, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word == option:
            skip = True
        elif not word.startswith(f"{option}="):
            out.append(word)
    return out


def _run(words: list[str], processes: int, threads: int) -> int:
    with tempfile.TemporaryDirectory() as place:
        logs = [open(os.path.join(place, str(n)), "w+") for n in range(processes)]  # noqa: SIM115
        group = _started(words, processes, threads, logs)
        # or the children would go on, and keep the lock
        before = signal.signal(signal.SIGTERM, _stop)
        try:
            while all(one.poll() is None for one in group) or _ended_well(group):
                if all(one.poll() == 0 for one in group):
                    return 0
                time.sleep(0.05)
            first = next(n for n, one in enumerate(group) if one.poll())
            _end(group)
        except KeyboardInterrupt:
            for one in group:
                if one.poll() is None:
                    one.send_signal(signal.SIGINT)
            _end(group)
            if group[0].returncode < 0:  # it was ended before it could say so itself
                say("espalier: stopped; what was measured is on disk: type the same again to go on")
            return 130
        finally:
            signal.signal(signal.SIGTERM, before)
            for log in logs:
                log.flush()
        code = group[first].returncode
        if first:  # what the first has to say it has said itself
            logs[first].seek(0)
            last = logs[first].read().strip().splitlines()[-1:]
            say("".join(f"{line}\n" for line in last).rstrip() or "(it said nothing)")
        if first or code < 0:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
            say(
                f"espalier: process {first + 1} of {processes} {how}, so the others were ended too. What was "
                "measured before is on disk: type the same command again to go on"
            )
        return 1 if code < 0 else code


def _stop(*_: Any) -> None:
    raise KeyboardInterrupt


def _ended_well(group: Sequence[Any]) -> bool:
    return all(one.poll() in (None, 0) for one in group)


def _started(words: list[str], processes: int, threads: int, logs: Sequence[Any]) -> list[Any]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "OMP_NUM_THREADS": str(threads),
    }
    group = []
    for number in range(processes):
        own = {"RANK": str(number), "LOCAL_RANK": str(number)}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": logs[number]} if number else {}
        group.append(
            subprocess.Popen(
                [sys.executable, "-m", "espalier", *words],
                env={**os.environ, **shared, **own},
                start_new_session=True,  # Ctrl-C is for us, who pass it on once
                **quiet,  # type: ignore[arg-type]
            )
        )
    return group


def _end(group: Sequence[Any]) -> None:
    """Let them end by themselves, which those do who wait for a dead one; then insist."""
    patience = time.monotonic() + PATIENCE
    while time.monotonic() < patience and any(one.poll() is None for one in group):
        time.sleep(0.05)
    for one in group:
        if one.poll() is None:
            one.terminate()
    for one in group:
        one.wait()
