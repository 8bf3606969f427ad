"""The page of a run while it goes on, served on this machine only."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..analysis.reader import read_run
from ..core.errors import EspalierError, FolderError, InvalidValueError
from ..io.files import digest
from ..io.paths import CONFIG, LOCK, ROWS, RUN, SCORES
from . import Report
from .page import render

HOST, PORT = "127.0.0.1", 8765
TRIED = 50  # ports after the one that is in use
WAITING = (
    "<!doctype html><meta charset=utf-8><meta http-equiv=refresh content=2><title>waiting</title>"
    "<body style='font:1.1rem system-ui;margin:3rem'><p>{}</p><p>This page renews itself.</p>"
)


class Watched:
    """A run folder: its state, and the page of that state, made once."""

    def __init__(self, folder: Path):
        self.folder, self._made, self._lock = folder, ("", ""), threading.Lock()
        check_watched(folder)

    def state(self) -> str:
        """Return what changes whenever a row is added."""
        found = [(self.folder / name) for name in (RUN, ROWS, SCORES)]
        return digest(
            repr([(p.stat().st_mtime_ns, p.stat().st_size) if p.exists() else 0 for p in found]).encode()
        )

    def page(self) -> str:
        """Return the page of the rows so far, or one that says what is missing."""
        with self._lock:
            now = self.state()
            if self._made[0] != now:
                self._made = (now, self._render(now))
            return self._made[1]

    def _render(self, state: str) -> str:
        try:
            return render(Report([read_run(self.folder)]), live=state)
        except EspalierError as error:  # of a run that has only begun
            return WAITING.format(escape(str(error)))


def check_watched(folder: Path) -> None:
    """Raise unless a folder is a run, or one that is about to begin."""
    if (folder / CONFIG).is_file() or (not (folder / RUN).is_file() and not (folder / LOCK).is_file()):
        kind = "is a model" if (folder / CONFIG).is_file() else f"holds no {RUN}"
        raise FolderError(f"{folder} {kind}: give the folder of a comparison, begun or finished", folder)


def open_server(folder: Path, port: int = PORT) -> ThreadingHTTPServer:
    """Return a server of the page, on the loopback interface only; its `serve_forever` answers."""
    watched = Watched(folder)
    try:
        return _Server((HOST, port), _handler(watched))
    except OSError as error:
        free = next((n for n in range(port + 1, port + TRIED) if n < 2**16 and is_free(n)), None)
        more = f". Port {free} is free: set `port` to it" if free else ""
        raise InvalidValueError(f"cannot serve on port {port}: {error.strerror}{more}", "port") from None


def is_free(port: int) -> bool:
    """Whether nothing listens on a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


class _Server(ThreadingHTTPServer):
    daemon_threads = True


def _handler(watched: Watched) -> type[BaseHTTPRequestHandler]:
    answers: dict[str, Callable[[], str]] = {"/": watched.page, "/state": watched.state}

    class Handler(BaseHTTPRequestHandler):
        """Answers / and /state, and only if this machine was asked by its own name."""

        def do_GET(self) -> None:
            name = (self.headers.get("Host") or "").rpartition(":")[0]
            answer = answers.get(self.path.partition("?")[0])
            if name not in (HOST, "localhost"):  # a page elsewhere may point its own name here
                self._send(HTTPStatus.FORBIDDEN, "served to this machine only")
            elif answer is None:
                self._send(HTTPStatus.NOT_FOUND, "there are / and /state")
            else:
                self._send(HTTPStatus.OK, answer(), "html" if answer == watched.page else "plain")

        def _send(self, status: HTTPStatus, text: str, kind: str = "plain") -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: the terminal belongs to the run."""

    return Handler
