"""Run a function in a child process and stop, or spoil, the n-th change that it makes to a folder.

Every system call by which a process changes files is seen, also those of Rust and C++ code (safetensors,
tokenizers), because the child is traced: Linux on x86-64, with ptrace and a seccomp filter.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

AVAILABLE = sys.platform == "linux" and platform.machine() == "x86_64"
# system call -> (number, where its path or descriptor is); "@" is a path relative to the descriptor before it
CALLS = {
    "write": (1, "f0"),
    "pwrite64": (18, "f0"),
    "writev": (20, "f0"),
    "pwritev": (296, "f0"),
    "open": (2, "p0"),
    "creat": (85, "p0"),
    "openat": (257, "@0"),
    "rename": (82, "p0p1"),
    "renameat": (264, "@0@2"),
    "renameat2": (316, "@0@2"),
    "unlink": (87, "p0"),
    "unlinkat": (263, "@0"),
    "rmdir": (84, "p0"),
    "mkdir": (83, "p0"),
    "mkdirat": (258, "@0"),
    "link": (86, "p0p1"),
    "linkat": (265, "@0@2"),
    "symlink": (88, "p1"),
    "symlinkat": (266, "@1"),
    "truncate": (76, "p0"),
    "ftruncate": (77, "f0"),
    "fallocate": (285, "f0"),
    "fsync": (74, "f0"),
    "fdatasync": (75, "f0"),
    "chmod": (90, "p0"),
    "fchmod": (91, "f0"),
    "fchmodat": (268, "@0"),
    "utimensat": (280, "@0"),
    "sendfile": (40, "f0"),
    "copy_file_range": (326, "f2"),
}
NAMES = {number: name for name, (number, _) in CALLS.items()}
WRITES = ("write", "pwrite64")
GROW = (
    "write",
    "pwrite64",
    "writev",
    "pwritev",
    "sendfile",
    "copy_file_range",
    "fallocate",
    "mkdir",
    "mkdirat",
)
GROW += ("creat", "open", "openat", "link", "linkat", "symlink", "symlinkat")  # what a full disk refuses
FILL = ("write", "pwrite64", "writev", "pwritev", "ftruncate", "sendfile", "copy_file_range")
O_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
REGISTERS = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp ss fs_base"
REGISTERS += " gs_base ds es fs gs"
NUMBERED = {name: i for i, name in enumerate(REGISTERS.split())}
ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
KILL, TORN, FULL, FAULTY = "kill", "torn", "ENOSPC", "EIO"
OK, REFUSED, BARE = 0, 3, 4  # how a child ends


@dataclass(frozen=True)
class Change:
    """One system call that changes the folder."""

    call: str
    path: str
    to: str = ""


@dataclass
class Ended:
    """How a run ended, and the changes that it made."""

    end: str  # done, refused, bare or killed
    changes: list[Change] = field(default_factory=list)
    message: str = ""


def run(work: Callable[[], object], root: Path, *, at: int | None = None, fault: str = KILL) -> Ended:
    """Run `work` in a child; before the change number `at` (from 0) below `root` let the fault happen.

    kill: the child is killed before the change. torn: half of a write is written, then it is killed.
    EIO: this change fails. ENOSPC: this and every later change that needs room fails.
    """
    said, log = os.pipe()
    child = os.fork()
    if not child:
        os.close(said)
        _be_traced(work, log)
    os.close(log)
    try:
        found = _Tracer(child, root.resolve(), at, fault).follow()
        with os.fdopen(said, "rb") as text:
            found.message = text.read().decode(errors="replace")
    except BaseException:
        os.killpg(child, signal.SIGKILL)
        raise
    return found


def _be_traced(work: Callable[[], object], log: int) -> None:
    code = BARE
    try:
        os.setpgid(0, 0)
        _libc().ptrace(0, 0, None, None)  # TRACEME
        os.kill(os.getpid(), signal.SIGSTOP)
        _filter_calls()
        hidden = os.open(os.devnull, os.O_WRONLY)
        os.dup2(hidden, 1)
        os.dup2(hidden, 2)
        work()
        code = OK
    except BaseException as error:
        from espalier import EspalierError

        code = REFUSED if isinstance(error, EspalierError) else BARE
        os.write(log, "".join(traceback.format_exception(error)).encode()[-60000:])
    finally:
        os._exit(code)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    return libc


def _filter_calls() -> None:
    """Make the kernel stop this process for its tracer at the calls of the table, and at no other."""
    numbers = sorted(NAMES)
    code = [struct.pack("HBBI", 0x20, 0, 0, 0)]  # load the number of the call
    for i, number in enumerate(numbers):
        code.append(struct.pack("HBBI", 0x15, len(numbers) - i, 0, number))  # if equal, jump to the last line
    code.append(struct.pack("HBBI", 0x06, 0, 0, 0x7FFF0000))  # allow
    code.append(struct.pack("HBBI", 0x06, 0, 0, 0x7FF00000))  # trace
    program = ctypes.create_string_buffer(b"".join(code))
    described = struct.pack("HxxxxxxP", len(code), ctypes.addressof(program))
    libc = _libc()
    libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong]
    if libc.prctl(38, 1, None, 0, 0) or libc.prctl(22, 2, described, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot filter system calls")


class _Tracer:
    """Follows a child and its threads from stop to stop."""

    def __init__(self, child: int, root: Path, at: int | None, fault: str):
        self.child, self.root, self.at, self.fault = child, str(root), at, fault
        self.libc, self.ended = _libc(), Ended("killed")
        self.spoiled = False

    def follow(self) -> Ended:
        os.waitpid(self.child, 0)
        options = 0x80 | 0x100000 | 0x8 | 0x2 | 0x4  # seccomp stops, die with the tracer, follow threads
        self.libc.ptrace(0x4200, self.child, None, options)
        self._continue(self.child)
        while True:
            process, status = os.waitpid(-self.child, 0x40000000)  # all threads
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                if process == self.child:
                    codes = {OK: "done", REFUSED: "refused"}
                    end = codes.get(os.WEXITSTATUS(status), "bare") if os.WIFEXITED(status) else "killed"
                    self.ended.end = end
                    return self.ended
                continue
            stopped, event = os.WSTOPSIG(status), status >> 16
            if event == 7:
                if not self._see(process):
                    os.killpg(self.child, signal.SIGKILL)
                    continue
                self._continue(process)
            else:
                ours = event or stopped in (signal.SIGTRAP, signal.SIGSTOP)
                self._continue(process, 0 if ours else stopped)

    def _continue(self, process: int, number: int = 0) -> None:
        self.libc.ptrace(7, process, None, number)

    def _see(self, process: int) -> bool:
        """Note a change and spoil it, if it is the one; return False if the child is to be killed now."""
        registers = ctypes.create_string_buffer(27 * 8)
        self.libc.ptrace(12, process, None, ctypes.addressof(registers))  # GETREGS
        values = list(struct.unpack("27Q", registers.raw))
        change = self._change(process, values)
        if change is None:
            return True
        self.ended.changes.append(change)
        number = len(self.ended.changes) - 1
        if self.at is None or number < self.at:
            return True
        if self.fault == KILL:
            return False
        if self.fault == TORN:
            if number > self.at:
                return False
            if change.call in WRITES:
                values[NUMBERED["rdx"]] //= 2
                self._set(process, values)
            return True
        if number == self.at or (self.fault == FULL and change.call in GROW):
            values[NUMBERED["orig_rax"]] = 2**64 - 1
            values[NUMBERED["rax"]] = 2**64 - getattr(errno, self.fault)
            self._set(process, values)
        return True

    def _set(self, process: int, values: list[int]) -> None:
        registers = ctypes.create_string_buffer(struct.pack("27Q", *values))
        self.libc.ptrace(13, process, None, ctypes.addressof(registers))

    def _change(self, process: int, values: list[int]) -> Change | None:
        call = NAMES.get(values[NUMBERED["orig_rax"]])
        if call is None:
            return None
        given = [values[NUMBERED[name]] for name in ARGUMENTS]
        flags = {"open": given[1], "openat": given[2]}.get(call)
        if flags is not None and not flags & O_CHANGES:
            return None
        places = CALLS[call][1]
        paths = [self._path(process, places[i], given, int(places[i + 1])) for i in range(0, len(places), 2)]
        inside = [p for p in paths if p == self.root or p.startswith(self.root + "/")]
        if not inside:
            return None
        return Change(call, *(p.removeprefix(self.root + "/") for p in paths))

    def _path(self, process: int, kind: str, given: list[int], at: int) -> str:
        try:
            if kind == "f":
                return os.readlink(f"/proc/{process}/fd/{given[at]}")
            name = self._text(process, given[at + (kind == "@")])
            if name.startswith("/"):
                return os.path.normpath(name)
            descriptor = ctypes.c_int(given[at] & 0xFFFFFFFF).value if kind == "@" else -100
            folder = f"/proc/{process}/cwd" if descriptor == -100 else f"/proc/{process}/fd/{descriptor}"
            return os.path.normpath(os.path.join(os.readlink(folder), name))
        except OSError:
            return ""

    def _text(self, process: int, address: int) -> str:
        if not address:
            return ""
        with open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
            memory.seek(address)
            found = memory.read(4096 - address % 4096)  # up to the end of the page, which is readable
            while b"\0" not in found:
                found += memory.read(4096)
        return os.fsdecode(found.split(b"\0", 1)[0])


def unsynced(changes: list[Change]) -> list[str]:
    """Return files of models, records and rows that came to their place before they were on the disk."""
    waiting: set[str] = set()
    found: list[str] = []
    for change in changes:
        if change.call in ("fsync", "fdatasync"):
            waiting.discard(change.path)
        elif change.call in FILL and Path(change.path).suffix in (
            ".safetensors",
            ".json",
            ".jsonl",
            ".part",
            "",
        ):
            waiting.add(change.path)
        elif change.call.startswith(("unlink", "rmdir")):
            waiting.discard(change.path)
        elif change.call.startswith("rename"):
            moved = {p for p in waiting if p == change.path or p.startswith(change.path + "/")}
            waiting -= moved
            names = [change.to + p.removeprefix(change.path) for p in moved]
            found += [name for name in names if not is_temporary(name)]
            waiting |= {name for name in names if is_temporary(name)}
    return sorted({*found, *(p for p in waiting if not is_temporary(p))})


def is_temporary(path: str) -> bool:
    """Return whether a path is hidden, as what is not finished is, and not the state of a training."""
    return any(p.startswith(".") and p != ".espalier-training" for p in Path(path).parts)
