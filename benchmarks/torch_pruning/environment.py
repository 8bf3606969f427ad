"""Torch-Pruning's own environment, and asking a process of its own for one answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks" / ".venv-torch-pruning"
PYTHON = FOLDER / ("Scripts" if os.name == "nt" else "bin") / "python"
PACKAGES = ["torch==2.13.0", "transformers", "torch-pruning==1.6.1", "safetensors"]


def make():
    """Make the environment unless it is there."""
    if (FOLDER / "ready").exists():
        return
    say(f"installing {', '.join(PACKAGES)} into {FOLDER.relative_to(ROOT)} (once)")
    subprocess.run([sys.executable, "-m", "venv", "--clear", FOLDER], check=True)
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", *PACKAGES], check=True)
    (FOLDER / "ready").touch()


def ask(table, tool, *rest, patience):
    """Run one case in a process of its own, with one thread, and read its answer."""
    python = sys.executable
    settings = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_OFFLINE"), "1")
    if tool == "Torch-Pruning":
        python = PYTHON
        settings.pop("PYTHONPATH", None)  # only what its environment holds
    command = [python, "-m", "benchmarks.torch_pruning", "--case", table, tool, *rest]
    how = {"capture_output": True, "text": True, "cwd": ROOT, "env": settings, "check": False}
    try:
        done = subprocess.run(command, timeout=patience, **how)
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {patience} s"}
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        return {"error": f"ended with code {done.returncode}: {last}"}


def say(text):
    print(text, file=sys.stderr, flush=True)
