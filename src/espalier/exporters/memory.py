"""How much memory a model needs: a fresh process opens it, runs one batch and says what its peak was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from ..core.errors import UnsupportedError
from ..io.paths import EXPORT_RECORD, EXPORTED


def peak_memory(folder: str | Path, batch_size: int, length: int, threads: int) -> int | None:
    """Return the peak resident bytes of a process of its own, with its interpreter and libraries.

    None where the system does not tell.
    """
    words = [sys.executable, "-m", __name__, str(folder), str(batch_size), str(length), str(threads)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        last = " ".join(done.stderr.split())[-300:]
        raise UnsupportedError(f"the process that measures the memory of {folder} failed: {last}")
    found = json.loads(done.stdout.splitlines()[-1])["bytes"]
    return None if found is None else int(found)


def _peak() -> int | None:
    """Return the peak of this program. That of `getrusage` would be at least that of its parent."""
    try:
        lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), None)


def _run_exported(folder: Path, batch_size: int, length: int, threads: int) -> None:
    import numpy as np

    from .runtime import open_file

    record = json.loads((folder / EXPORT_RECORD).read_text("utf-8"))
    ids = np.ones((batch_size, length), dtype=np.int64)
    open_file(folder / EXPORTED[record["to"]], record["to"], threads, record.get("outputs", ()))(
        dict.fromkeys(record["inputs"], ids)
    )


def _run_torch(folder: Path, batch_size: int, length: int, threads: int) -> None:
    import torch
    import transformers

    from ..storage.resolve import config_of, model_class

    torch.set_num_threads(threads)
    cls = model_class(config_of(str(folder), allow_type=False).architectures) or transformers.AutoModel
    model = cls.from_pretrained(folder, dtype=torch.float32).eval()
    config = model.config.get_text_config()
    if hasattr(config, "use_cache"):
        config.use_cache = False  # as when it is timed
    ids = torch.ones(batch_size, length, dtype=torch.long)
    with torch.inference_mode():
        model(input_ids=ids, attention_mask=ids)


if __name__ == "__main__":
    place, *numbers = sys.argv[1:]
    run = _run_exported if (Path(place) / EXPORT_RECORD).is_file() else _run_torch
    run(Path(place), *map(int, numbers))  # type: ignore[arg-type]
    print(json.dumps({"bytes": _peak()}))
