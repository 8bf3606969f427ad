"""Write hashes.txt: every version of constraints.txt with the digests that the index has for its files.

python benchmarks/hashes.py        # after a change of constraints.txt

torch is left out: the index's own build for Linux brings CUDA packages with it, others (a CPU wheel of
another index, a local file) do not, and a list with hashes must name everything that is installed.
"""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

from pip._internal.models.index import PyPI

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("torch",)
WHEEL = re.compile(
    r"-(py3|py2\.py3|cp3\d+)-(none|abi3|cp31[1-4])-(any|.*(manylinux.*(x86_64|aarch64)|macosx|win_amd64).*)\.whl$"
)
FILE = re.compile(r'href="[^"]*/([^"/]+)#sha256=([0-9a-f]{64})"')


def digests(pin: str) -> list[str]:
    """Return the digests of the files of one version that Python 3.11 and later can install."""
    name, _, version = pin.partition("==")
    with urlopen(f"{PyPI.simple_url}/{re.sub(r'[-_.]+', '-', name).lower()}/", timeout=60) as page:
        files = FILE.findall(page.read().decode())
    own = [
        (file, digest)
        for file, digest in files
        if f"-{version}-" in file or file.endswith((f"-{version}.tar.gz", f"-{version}.zip"))
    ]
    return sorted(
        {digest for file, digest in own if file.endswith((".tar.gz", ".zip")) or WHEEL.search(file)}
    )


def main() -> None:
    """Write the file; stop if the index has no file of a version."""
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if "==" in line and line.partition("==")[0] not in LEFT_OUT]
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(pins, pool.map(digests, pins)))
    if missing := [pin for pin, known in found.items() if not known]:
        sys.exit(f"the index has no files of {', '.join(missing)}")
    text = (
        "# Written by benchmarks/hashes.py: the versions of constraints.txt and the digests of their files.\n"
    )
    for pin, known in found.items():
        text += " \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in known)]) + "\n"
    (ROOT / "hashes.txt").write_text(text, "utf-8")


if __name__ == "__main__":
    main()
