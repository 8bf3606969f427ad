"""Other versions: of transformers, in environments of their own, and folders that older espaliers wrote.

python benchmarks/compatibility.py versions 5.18.0 5.20.0 5.22.2   # the storage tests with each transformers
python benchmarks/compatibility.py fixtures tests/data/v0.1.0      # writes what the test of old folders reads

Only transformers varies: any torch but the pinned one brings several gigabytes of CUDA with it. An
environment sees the installed packages of this one and puts its own transformers before them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ("test_compatibility", "test_cut", "test_hook", "test_core")
# commit -> what it writes, by its own interface: the first that had the format, and the last before version 2
WRITERS = {
    "91235c8": """
import json, sys, torch, espalier
from pathlib import Path
from transformers import BertConfig, BertForSequenceClassification
out = Path(sys.argv[1])
torch.manual_seed(0)
config = BertConfig(vocab_size=60, hidden_size=8, num_hidden_layers=2, num_attention_heads=4,
                    intermediate_size=12, max_position_embeddings=32)
model = BertForSequenceClassification(config).eval()
for p in model.parameters():
    p.data += 0.1 * torch.randn(p.shape)
kept = {s.name: torch.arange(s.units) % 3 != i % 3 for i, s in enumerate(espalier.sites(model))}
kept = {n: m & False if n.startswith("encoder.layer.1") and m.numel() == 4 else m for n, m in kept.items()}
espalier.cut(model, espalier.Mask(kept))
espalier.save(model, out / "first")
logits = model(torch.arange(24).reshape(2, 12)).logits.tolist()
keep = espalier.Plan.load(out / "first/plan.json").keep
(out / "first.json").write_text(json.dumps({"logits": logits, "keep": keep}))
""",
    "6d080be": """
import json, os, sys, torch, espalier
from pathlib import Path
out, tests = Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, tests)
import toys
from transformers import BertConfig, BertForSequenceClassification
from typer.testing import CliRunner
from espalier.cli import app
os.chdir(out)
torch.set_num_threads(1)
torch.manual_seed(0)
config = BertConfig(vocab_size=60, hidden_size=8, num_hidden_layers=2, num_attention_heads=4,
                    intermediate_size=12, max_position_embeddings=32)
model = BertForSequenceClassification(config)
for p in model.parameters():
    p.data += 0.1 * torch.randn(p.shape)
model.save_pretrained("model")
toys.tokenizer().save_pretrained("model")
toys.table_of(Path("data.tsv"), n=60)
def run(*words):
    done = CliRunner().invoke(app, [*words, "--length", "16", "--validate", "8"])
    assert done.exit_code == 0, done.output + repr(done.exception)
data = ("--task", "data.tsv")
few = (*data, "--calibrate", "8", "--test", "8")
run("train", "model", *data, "-o", "trained", "--epochs", "1", "--examples", "16")
few += ("--no-figures",)
run("compare", "trained", *few, "-o", "heads", "--by", "gnorm,random:2", "--every", "2", "--all-scores")
levels = ("--what", "weights", "--by", "magnitude", "--levels", "0.5,0.9")
run("compare", "trained", *few, "-o", "weights", *levels)
few = few[:-1]
run("prune", "trained", *few, "-o", "pruned", "--keep", "0.5", "--from", "heads")
small = espalier.load("pruned")
torch.manual_seed(1)
for p in small.parameters():
    p.data[torch.rand(p.shape) < 0.8] = 0
espalier.save(small, "sparse", sparse=True)
given = torch.arange(24).reshape(2, 12)
logits = {name: espalier.load(name).eval()(given).logits.tolist() for name in ("trained", "pruned", "sparse")}
espalier.Plan({"0/heads": [0, 1, 2, 7]}, {"0/heads": 8}, {"by": "hand"}).save("plan.json")
Path("expected.json").write_text(json.dumps(logits))
""",
}
LEFT_OUT = (
    "model",
    "data.tsv",
    "*.csv",
    "*.xlsx",
    "*.md",
    "tables",
    "published",
    "figures",
    ".lock",
    "*-run",
)


def make_fixtures(out: Path) -> None:
    """Let old commits write what the test of old folders reads."""
    out.mkdir(parents=True, exist_ok=True)
    for commit, script in WRITERS.items():
        with tempfile.TemporaryDirectory() as place:
            checkout = Path(place) / "checkout"
            _run("git", "worktree", "add", "--detach", str(checkout), commit)
            try:
                environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "HF_HUB_OFFLINE": "1"}
                given = (str(out.resolve()), str(checkout / "tests"))
                _run(sys.executable, "-c", script, *given, env=environment)
            finally:
                _run("git", "worktree", "remove", "--force", str(checkout))
    for pattern in LEFT_OUT:
        for path in sorted(out.rglob(pattern), reverse=True):
            _run("rm", "-rf", str(path))


def try_versions(versions: list[str]) -> None:
    """Run the storage tests with each version of transformers and print how many pass."""
    print("| transformers | passed | failed | installed |\n|---|---|---|---|")
    for version in versions:
        with tempfile.TemporaryDirectory() as place:
            venv.create(place, with_pip=True, system_site_packages=False)
            python = str(Path(place) / "bin/python")
            packages = next(Path(place).glob("lib/python*/site-packages"))
            here = [p for p in sys.path if p.endswith("site-packages")]
            (packages / "outer.pth").write_text("\n".join(here) + "\n")
            wanted = f"transformers=={version}"
            _run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted)
            shown = "import transformers, torch; print(transformers.__version__, torch.__version__)"
            found = subprocess.run([python, "-c", shown], capture_output=True, text=True, check=True).stdout
            tests = [f"tests/{name}.py" for name in TESTS if (ROOT / f"tests/{name}.py").exists()]
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
            done = subprocess.run(
                [python, "-m", "pytest", "-o", "addopts=", "-q", "-p", "no:cacheprovider", *tests],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
            )
            last = done.stdout.strip().splitlines() or [done.stderr]
            passed, failed = (_count(done.stdout, word) for word in ("passed", "failed"))
            print(f"| {version} | {passed} | {failed} | {found.strip()} |", flush=True)
            if done.returncode:
                print(
                    "\n".join(line for line in last if line.startswith(("FAILED", "ERROR"))), file=sys.stderr
                )


def _count(text: str, word: str) -> int:
    import re

    found = re.findall(rf"(\d+) {word}", text)
    return int(found[-1]) if found else 0


def _run(*words: str, env: dict[str, str] | None = None) -> None:
    subprocess.run(words, check=True, cwd=ROOT, env=env)


def main() -> None:
    """Try versions, or write fixtures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("versions", "fixtures"))
    parser.add_argument("given", nargs="+")
    asked = parser.parse_args()
    if asked.what == "versions":
        try_versions(asked.given)
    else:
        make_fixtures(Path(asked.given[0]))


if __name__ == "__main__":
    main()
