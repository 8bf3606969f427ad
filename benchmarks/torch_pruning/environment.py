"""Torch-Pruning's own environment, and running one case in a process of its own."""

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
    """Create the environment unless it exists."""
    if (FOLDER / "ready").exists():
        return
    log(f"installing {', '.join(PACKAGES)} into {FOLDER.relative_to(ROOT)} (once)")
    subprocess.run([sys.executable, "-m", "venv", "--clear", FOLDER], check=True)
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", ROOT / "constraints.txt", *PACKAGES], check=True)
    (FOLDER / "ready").touch()


def run_case(table, tool, *rest, timeout):
    """Run one case in a process of its own, with one thread, and return its result."""
    python = sys.executable
    settings = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_OFFLINE"), "1")
    if tool == "Torch-Pruning":
        python = PYTHON
        settings.pop("PYTHONPATH", None)  # nothing from outside its environment
    command = [python, "-m", "benchmarks.torch_pruning", "--case", table, tool, *rest]
    options = {"capture_output": True, "text": True, "cwd": ROOT, "env": settings, "check": False}
    try:
        done = subprocess.run(command, timeout=timeout, **options)
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return {"error": f"no result in {timeout} s"}
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        return {"error": f"ended with code {done.returncode}: {last}"}


def log(message):
    print(message, file=sys.stderr, flush=True)
