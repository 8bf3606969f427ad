"""Mutated inputs of every format that is read: each loads, or raises an EspalierError.

python -m benchmarks.fuzz --inputs 1000000 --state fuzz.json --failures fuzz-failures

Input number i of a format is a function of the seed, the format and i, so a run that was stopped resumes, and
any failure can be made again. Inputs are read in forked children with limits: CPU time, memory beyond twice
the input, and a deadline against hangs outside Python. Where there is a second opinion (another reader,
the outputs of the unharmed model), a load that contradicts it counts as wrong.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import logging
import mmap
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import espalier
from espalier import EspalierError, Plan, tasks
from espalier.analysis.reader import read_run
from espalier.reproductions import recipe
from espalier.reproductions.sources import open_recipe, read_sources
from espalier.storage import encodings
from espalier.storage.encodings import Encoded
from espalier.storage.sparse_file import SparseFile, encode_files
from espalier.testing.tiny import inputs, outputs, tiny, uneven
from espalier.training.folder import read_state, write_state

OUTCOMES = ("loaded", "refused", "bare", "wrong", "hang", "memory", "died")
GOOD = ("loaded", "refused")
CPU_SECONDS = 4.0  # of one input
WALL_SECONDS = 120.0  # without any progress: a hang that no Python signal ends
SPARE = 96 << 20  # bytes beside twice the input
CHUNK = 20  # inputs of one child for each unit of its format's share
Data = bytes
Read = Callable[[Path], Any]
Mutate = Callable[[random.Random, bytes], bytes]


@dataclass(frozen=True)
class Format:
    """How inputs of a format are made, read and judged."""

    name: str
    file: str  # its name in the folder it is read from
    share: float  # of all inputs
    bases: list[bytes] = field(repr=False)
    mutate: Mutate = field(repr=False)
    read: Read = field(repr=False)
    judge: Callable[[bytes, Any], str | None] = field(
        default=lambda data, found: None, repr=False
    )  # what is wrong about a load
    around: dict[str, bytes] = field(default_factory=dict, repr=False)  # other files of the folder


# Mutations

NUMBERS: tuple[Any, ...] = (0, -1, 1, 2, 3, 12.9, -0.0, 0.5, 1e308, 1e-320, 2**31, 2**53 + 1, 2**63, 10**30)
NUMBERS += (float("nan"), float("inf"), float("-inf"), True, False)
TEXTS = ("", " ", "0", "-5", "1_0", "٣", "5-3", "0-9999999999", "0-4,0-4,0-4", "nan", "inf", "NaN", "1e999")
TEXTS += (
    "../../x",
    "/etc/passwd",
    "<script>alert(1)</script>",
    "\x1b[31m",
    "\x00",
    "\ud83d",
    "=1+1",
    "ß" * 300,
)
TEXTS += (
    "float32",
    "int8",
    "weight",
    "base",
    "one-shot",
    "validation",
    "0" * 60,
    "a.b",
    "__class__",
    "base_model",
)
DEEP = "\x02deep\x02"  # becomes a nest of lists in the text
HUGE = "\x02huge\x02"  # becomes an integer of 5000 digits


def mutate_bytes(draw: random.Random, data: bytes) -> bytes:
    """Return the bytes with one to four small changes."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at, end = sorted(draw.randrange(len(out) + 1) for _ in range(2))
        end = min(end, at + draw.choice((1, 2, 8, 64)))
        kind = draw.randrange(8)
        if kind == 0 and out:
            out[draw.randrange(len(out))] ^= 1 << draw.randrange(8)
        elif kind == 1 and out:
            out[draw.randrange(len(out))] = draw.choice(
                (0, 255, 0x22, 0x2C, 0x5B, 0x7B, 0x0A, 0x0D, 0x09, 0x2D)
            )
        elif kind == 2:
            out[at:at] = bytes(draw.randrange(256) for _ in range(draw.choice((1, 2, 8))))
        elif kind == 3:
            del out[at:end]
        elif kind == 4:
            out[at:at] = out[at:end]
        elif kind == 5:
            del out[draw.randrange(len(out) + 1) :]
        elif kind == 6:
            numbers = list(re.finditer(rb"\d+", bytes(out)))
            if numbers:
                found = draw.choice(numbers)
                out[found.start() : found.end()] = str(draw.choice(NUMBERS)).encode()
        else:
            out[at:end] = draw.choice(TEXTS).encode(errors="surrogatepass")
    return bytes(out)


def mutate_json(draw: random.Random, data: bytes) -> bytes:
    """Return the JSON with one to three of its values, keys or entries changed."""
    value = json.loads(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        value = change(draw, value)
    return to_json(value)


def to_json(value: Any) -> bytes:
    """Return JSON, with what only text can hold put in place of its signs."""
    text = json.dumps(value, ensure_ascii=False)
    text = text.replace(json.dumps(DEEP, ensure_ascii=False), "[" * 5000 + "]" * 5000)
    return text.replace(json.dumps(HUGE, ensure_ascii=False), "9" * 5000).encode(errors="surrogatepass")


def change(draw: random.Random, value: Any) -> Any:
    """Change one place of a JSON value, in place where that is possible."""
    places = list(_places(value))
    if not places:
        return _other(draw, value)
    holder, key = draw.choice(places)
    kind = draw.randrange(10)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[draw.choice((*TEXTS, str(key) + "x"))] = holder.pop(key)
    elif kind == 2 and isinstance(holder, list):
        holder.insert(draw.randrange(len(holder) + 1), holder[key])
    elif kind == 3:
        other, its = draw.choice(places)
        one, two = holder[key], other[its]
        if not (_contains(one, other) or _contains(two, holder)):
            holder[key], other[its] = two, one
    elif kind == 4 and isinstance(holder, list):
        draw.shuffle(holder)
    else:
        holder[key] = _other(draw, holder[key])
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


def _contains(value: Any, part: Any) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is part or any(_contains(one, part) for one in inside)


def _other(draw: random.Random, value: Any) -> Any:
    """Return another value, often a near one."""
    near = draw.random() < 0.5
    if near and isinstance(value, (int, float)) and not isinstance(value, bool):
        return draw.choice((value + 1, value - 1, -value, value * 2, value + 0.5, float(value), str(value)))
    if near and isinstance(value, str) and value:
        return mutate_bytes(draw, value.encode(errors="surrogatepass")).decode(errors="replace")
    if near and isinstance(value, (list, dict)) and value:
        return draw.choice((value.__class__(), [value], {"": value}, str(value)[:100], None))
    return draw.choice((None, [], {}, [[]], {"": None}, DEEP, HUGE, draw.choice(NUMBERS), draw.choice(TEXTS)))


def mutate_lines(draw: random.Random, data: bytes, line: Mutate = mutate_json) -> bytes:
    """Return lines with one of them changed, repeated, moved or lost."""
    lines = data.splitlines(keepends=True)
    at, kind = draw.randrange(len(lines)), draw.randrange(8)
    if kind == 0:
        lines.insert(draw.randrange(len(lines) + 1), lines[at])
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        draw.shuffle(lines)
    elif kind == 3:
        lines[at] = lines[at].rstrip(b"\n")
    else:
        lines[at] = line(draw, lines[at].rstrip(b"\n")) + b"\n"
    return b"".join(lines)


def mutate_table(draw: random.Random, data: bytes) -> bytes:
    """Return a text table with cells, separators or lines changed."""

    def cells(draw: random.Random, line: bytes) -> bytes:
        separator = b"\t" if b"\t" in line else b","
        row = line.split(separator)
        kind, at = draw.randrange(5), draw.randrange(len(row))
        if kind == 0:
            row.append(draw.choice(row))
        elif kind == 1:
            del row[at]
        elif kind == 2:
            draw.shuffle(row)
        else:
            other = (
                *TEXTS,
                str(draw.choice(NUMBERS)),
                '"',
                '"a\nb"',
                "a" + separator.decode(),
                "\ufeff",
                "1",
                "2",
            )
            row[at] = draw.choice(other).encode(errors="surrogatepass")
        return separator.join(row)

    return mutate_lines(draw, data, cells)


def mutate_toml(draw: random.Random, data: bytes) -> bytes:
    """Return TOML with a value changed, or lines changed."""

    def entry(draw: random.Random, line: bytes) -> bytes:
        name, equals, value = line.partition(b"=")
        if not equals:
            return draw.choice((b"", b"[" + line + b"]", line + b"x", b"[honest]", b"[a.b.c]"))
        others = (
            b"nan",
            b"inf",
            b"-1",
            b"1e400",
            b"true",
            b'""',
            b"[]",
            b"{}",
            b"[[1]]",
            b"1979-05-27",
            b"'x'",
        )
        others += (b"9" * 5000, b"[" * 3000 + b"]" * 3000, mutate_bytes(draw, value))
        return name + equals + draw.choice(others)

    return mutate_lines(draw, data, entry)


def mutate_safetensors(draw: random.Random, data: bytes) -> bytes:
    """Return a safetensors file with its header, the JSON in its metadata, or some bytes changed."""
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    described = [key for key in header.get("__metadata__", {}) if header["__metadata__"][key][:1] == "{"]
    kind = draw.randrange(4)
    if kind == 0 or (kind == 1 and not described):
        header = change(draw, header)
    elif kind == 1:
        key = draw.choice(described)
        made = mutate_json(draw, header["__metadata__"][key].encode())
        header["__metadata__"][key] = made.decode(errors="replace")
    elif kind == 2:
        rest = mutate_bytes(draw, rest)
    else:
        return mutate_bytes(draw, data)
    text = to_json(header)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + rest


def mutate_zip(draw: random.Random, data: bytes) -> bytes:
    """Return a workbook with a cell reference, a number or some bytes of one of its files changed."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        names = old.namelist()
        chosen = draw.choice([*names, *(3 * [n for n in names if "sheet" in n])])
        for name in names:
            content = old.read(name)
            if name == chosen:
                references = list(re.finditer(rb'r="([A-Z]+)?(\d+)"', content))
                if references and draw.random() < 0.6:
                    found = draw.choice(references)
                    far = draw.choice((b'r="XFD1048576"', b'r="1048576"', b'r="A0"', b'r="ZZZZ9"', b'r="B2"'))
                    content = content[: found.start()] + far + content[found.end() :]
                else:
                    content = mutate_bytes(draw, content)
            new.writestr(name, content)
    return out.getvalue()


def mostly(mutate: Mutate, share: float = 0.7) -> Mutate:
    """Return a mutation by structure, and for the rest by bytes."""
    return lambda draw, data: (mutate if draw.random() < share else mutate_bytes)(draw, data)


# Second opinions

RUNS = re.compile(r"(\d+(-\d+)?(,\d+(-\d+)?)*)?", re.ASCII)


def judge_plan(data: bytes, plan: Plan) -> str | None:
    """Compare a plan with a strict reading of its file."""
    raw = json.loads(data)
    for name, units in raw["units"].items():
        if type(units) is not int or units < 0:
            return f"a {type(units).__name__} taken for a number of units"
        text = raw["keep"][name]
        if not RUNS.fullmatch(text):
            return "units that are no runs were read"
        wanted: set[int] = set()
        for run in filter(None, text.split(",")):
            first, _, last = run.partition("-")
            if int(last or first) < int(first):
                return "a reversed run was read"
            wanted |= set(range(int(first), int(last or first) + 1))
        if plan.keep[name] != sorted(wanted):
            return "other units than in the file"
    if type(raw["version"]) is not int:
        return "a version that is no number was read"
    return None


def judge_rows(data: bytes, found: Any) -> str | None:
    """Look for rows that must not count: twice the same, and numbers that are none."""
    seen = set()
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        row = json.loads(line)
        key = tuple(json.dumps(row.get(name)) for name in ("method", "phase", "trial", "removed", "split"))
        if key in seen:
            return "a row counted twice"
        seen.add(key)
        if type(row.get("removed")) not in (int, float) or not isinstance(row.get("method"), str):
            return "removed or method of another type"
        if row.get("split") not in ("validation", "test"):
            return "an unknown split"
        score = (row.get("metrics") or {}).get("accuracy")
        if score is not None and (type(score) not in (int, float) or not 0 <= score <= 1):
            return "an accuracy that is none"
        if type(row.get("trial")) not in (int, type(None)):
            return "a trial that is no number"
    return None


def judge_table(rows: Callable[[bytes], list[list[str]]]) -> Callable[[bytes, Any], str | None]:
    """Return a judge: each text of the task is in a row of the file, with the class it has there."""

    def judge(data: bytes, task: Any) -> str | None:
        table = rows(data)
        header, body = table[0], table[1:]
        if any(len(row) > len(header) for row in body):
            return "a row with more cells than the header has names"
        taken = [task.train, task.validation, task.test]
        if sum(map(len, taken)) > len(body):
            return "more examples than rows"
        if task.kind != "classification":
            return None
        # of numbers alone, 01 and 1.0 are 1; among words they are names
        spell = _label if all(re.fullmatch(r"-?\d+", name) for name in task.classes) else str.strip
        pairs = {
            (t.strip(), spell(task.classes[int(n)])) for p in taken for t, n in zip(p.texts, p.labels or ())
        }
        columns = range(len(header))
        for text in columns:
            for label in columns:
                if pairs <= {(_cell(row, text), spell(_cell(row, label))) for row in body}:
                    return None
        return "texts with classes that they do not have in the file"

    return judge


def _cell(row: list[str], at: int) -> str:
    return row[at].strip() if at < len(row) else ""


def _label(name: str) -> str:
    """Return a label, and 1 for 01 and 1.0."""
    number = re.fullmatch(r"([+-]?\d+)(\.0*)?", name.strip(), re.ASCII)
    return str(int(number[1])) if number and len(name) < 1000 else name.strip()


def _tsv(data: bytes) -> list[list[str]]:
    lines = re.split(r"\r\n|\r|\n", data.decode("utf-8-sig"))
    return [line.split("\t") for line in lines if line]


def _csv(data: bytes) -> list[list[str]]:
    text = io.StringIO(data.decode("utf-8-sig"), newline="")
    return [row for row in csv.reader(text) if row]


def judge_outputs(reference: list[torch.Tensor]) -> Callable[[bytes, Any], str | None]:
    """Return a judge: a model that loads computes what the unharmed one computes."""

    def judge(data: bytes, model: Any) -> str | None:
        try:
            now = outputs(model, inputs(model))
        except Exception as error:
            return f"a model that cannot run ({type(error).__name__})"
        same = len(now) == len(reference) and all(map(torch.equal, now, reference))
        return None if same else "a model that computes something else"

    return judge


# The formats


def formats(place: Path) -> list[Format]:
    """Return every format, with valid inputs made in `place`."""
    return [*_models(place), *_runs(place), *_tables(), *_tensors(place), *_published()]


def _files(folder: Path, *names: str) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name not in names
    }


def _models(place: Path) -> list[Format]:
    bert = tiny("bert", "AutoModelForSequenceClassification")
    espalier.cut(bert, uneven(espalier.sites(bert), 1))
    espalier.save(bert, place / "cut", max_shard_size="60KB")
    wanted = outputs(bert, inputs(bert))
    t5 = tiny("t5", "AutoModelForSeq2SeqLM")
    espalier.cut(t5, uneven(espalier.sites(t5), 0))
    espalier.save(t5, place / "t5")
    espalier.save(bert, place / "sparse", sparse=True)
    plans = [(place / name / "plan.json").read_bytes() for name in ("cut", "t5")]
    plans.append(json.dumps(Plan({"0/heads": [1, 4, 5]}, {"0/heads": 12}, {"by": "hand"}).to_dict()).encode())
    config = (place / "cut/config.json").read_bytes()
    index = "model.safetensors.index.json"

    def mutate_record(draw: random.Random, data: bytes) -> bytes:
        raw = json.loads(data)
        for _ in range(draw.choice((1, 1, 2))):
            raw["quantization_config"] = change(draw, raw["quantization_config"])
        return to_json(raw)

    def read_model(path: Path) -> Any:
        return espalier.load(path.parent)

    bare = _files(place / "cut", "config.json", "plan.json")
    whole = _files(place / "cut", "config.json")
    sparse = _files(place / "sparse", "sparse.safetensors")
    same = judge_outputs(wanted)
    header = (place / "sparse/sparse.safetensors").read_bytes()

    def mutate_header(draw: random.Random, data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        raw = json.loads(data[8 : 8 + length])
        made = mutate_json(draw, raw["__metadata__"]["espalier_sparse"].encode())
        raw["__metadata__"]["espalier_sparse"] = made.decode(errors="replace")
        text = to_json(raw)
        return len(text).to_bytes(8, "little") + text + data[8 + length :]

    return [
        Format("plans", "plan.json", 300, plans, mostly(mutate_json), Plan.load, judge_plan),
        Format("records", "config.json", 4, [config], mutate_record, read_model, same, bare),
        Format("configs", "config.json", 3, [config], mostly(mutate_json), read_model, around=whole),
        Format("shards", index, 3, [whole[index]], mostly(mutate_json), read_model, same,
               {**whole, "config.json": config}),
        Format("sparse folders", "sparse.safetensors", 3, [header], mutate_header, read_model, same, sparse),
    ]  # fmt: skip


def _row(method: str, removed: int, split: str, **more: Any) -> dict[str, Any]:
    return {
        "method": method,
        "phase": "one-shot",
        "trial": None,
        "removed": removed / 6,
        "split": split,
        "metrics": {"accuracy": 0.75, "f1": 0.7, "loss": 0.5},
        "predictions": "0110" if removed < 4 else "0000",
        "n": 4,
        "cost": {"units": 6 - removed, "parameters": 1000 - 100 * removed, "macs": 5000 - 500 * removed},
        "order": None,
        "score": None,
        "seconds": {"scoring": 0.1, "evaluating": 0.2},
        "seed": 0,
        **more,
    }


def a_run() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return run.json and the rows of a small comparison of six heads."""
    settings = {
        "criterion": "gnorm",
        "options": {},
        "scope": "global",
        "rescore": True,
        "step": 1,
        "every": None,
    }
    settings |= {"reverse": False, "trials": None, "unit": "", "colour": None, "marker": None}
    labels = {"n": 4, "fingerprint": "0" * 16, "labels": "0110"}
    run = {
        "version": 2,
        "model": "toy",
        "class": "BertForSequenceClassification",
        "fingerprint": "4b6593b73a4f4eef",
        "task": "toy",
        "classes": ["0", "1"],
        "metric": "accuracy",
        "target": "heads",
        "also": [],
        "max_length": 32,
        "precision": "fp32",
        "seed": 0,
        "tolerance": 0.01,
        "training": None,
        "sites": [{"name": f"encoder.layer.{i}/heads", "units": 2, "uses": 1} for i in range(3)],
        "methods": ["gnorm", "random:2"],
        "settings": {"gnorm": settings, "random:2": {**settings, "criterion": "random", "trials": 2}},
        "splits": {"calibration": {"n": 4, "fingerprint": "1" * 16}, "validation": labels, "test": labels},
        "notes": [],
        "versions": {"espalier": "0.1.0"},
    }
    rows = [_row("base", 0, split) for split in ("validation", "test")]
    order = [[i, j] for i in range(3) for j in range(2)]
    rows += [_row("gnorm", k, "validation", order=[order[k - 1]]) for k in range(1, 7)]
    rows += [
        _row("random:2", k, "validation", trial=t, order=order[k - 2 : k]) for t in (0, 1) for k in (2, 4, 6)
    ]
    return run, [*rows, _row("gnorm", 3, "test")]


def _runs(place: Path) -> list[Format]:
    made, lines = a_run()
    manifest, rows = json.dumps(made).encode(), b"".join(json.dumps(row).encode() + b"\n" for row in lines)
    scores = b"".join(
        json.dumps({"method": "gnorm", "removed": k / 6, "scores": [[0.1, 0.2]] * 3}).encode() + b"\n"
        for k in range(3)
    )
    recipes = [path.read_bytes() for path in recipe.FOLDER.glob("*/recipes/*.toml")]

    def read(path: Path) -> Any:
        return read_run(path.parent)

    def read_recipe(path: Path) -> Any:
        return open_recipe(str(path))

    both = {"run.json": manifest, "rows.jsonl": rows}
    return [
        Format("rows", "rows.jsonl", 110, [rows], mostly(mutate_lines), read, judge_rows, both),
        Format("manifests", "run.json", 110, [manifest], mostly(mutate_json), read, around=both),
        Format("scores", "scores.jsonl", 40, [scores], mostly(mutate_lines), read, around=both),
        Format("recipes", "mine.toml", 100, recipes, mostly(mutate_toml), read_recipe),
    ]


def _tables() -> list[Format]:
    import pandas

    draw = random.Random(0)
    words = ["ba", "be", "bi", "bo", "bu", "da", "de", "di", "do", "du", "ka", "ke", "ki", "ko", "ku"]
    texts = [f"{i} " + " ".join(draw.choices(words, k=5)) for i in range(24)]
    names = [("bad", "good", "fair")[i % 3] for i in range(24)]
    frames = [
        pandas.DataFrame({"sentence": texts, "label": [i % 2 for i in range(24)]}),
        pandas.DataFrame({"text": texts, "label": names, "id": range(24)}),
    ]
    tsv = [frame.to_csv(sep="\t", index=False).encode() for frame in frames]
    comma = [frame.to_csv(index=False).encode() for frame in frames]
    lines = [frame.to_json(lines=True, orient="records").encode() for frame in frames]
    parquet = []
    for frame in frames:
        raw = io.BytesIO()
        frame.to_parquet(raw)
        parquet.append(raw.getvalue())

    def read(path: Path) -> Any:
        return tasks.load(str(path))

    return [
        Format("tables.tsv", "data.tsv", 60, tsv, mostly(mutate_table), read, judge_table(_tsv)),
        Format("tables.csv", "data.csv", 60, comma, mostly(mutate_table), read, judge_table(_csv)),
        Format("tables.jsonl", "data.jsonl", 40, lines, mostly(mutate_lines), read),
        Format("tables.parquet", "data.parquet", 12, parquet, mutate_bytes, read),
    ]


def _tensors(place: Path) -> list[Format]:
    from safetensors.torch import save_file

    torch.manual_seed(0)
    dense = {
        "a.weight": torch.randn(24, 32),
        "b.weight": torch.randn(64, 16).half(),
        "c.bias": torch.randn(16),
    }
    for weight in (dense["a.weight"], dense["b.weight"]):
        weight[torch.rand(weight.shape) < 0.8] = 0
    dense["d.weight"] = torch.zeros(40, 40)
    dense["d.weight"][:, ::4] = 1.0
    save_file(dense, place / "plain.safetensors")
    files = []
    for int8 in (False, True):
        file = place / f"sparse-{int8}.safetensors"
        encode_files([place / "plain.safetensors"], file, int8=int8)
        files.append(file.read_bytes())
    single = []
    for name in encodings.ENCODINGS:
        try:
            made = encodings.encode(torch.where(torch.arange(64).reshape(8, 8) % 4 == 0, 1.5, 0.0), name)
        except EspalierError:
            continue
        parts = {part: value.view(torch.uint8).numpy().tobytes().hex() for part, value in made.parts.items()}
        single.append(json.dumps({"spec": made.spec.to_dict(), "parts": parts}).encode())
    write_state(place / "state.safetensors", dense, {"step": 3, "settings": {"lr": 0.1, "epochs": 2}})
    state = (place / "state.safetensors").read_bytes()

    def read_sparse(path: Path) -> Any:
        file = SparseFile(path)
        return {name: file.tensor(name) for name in file.names}

    def read_encoded(path: Path) -> Any:
        try:
            raw = json.loads(path.read_bytes())
            packed = {name: bytearray.fromhex(part) for name, part in raw["parts"].items()}
        except (ValueError, RecursionError) as error:  # this container is the benchmark's own
            raise EspalierError(str(error)) from None
        spec = encodings.read(raw["spec"])
        if spec.n > 1 << 20:  # files have a limit relative to their size; a decoder alone has none
            raise EspalierError("larger than a file may become")
        parts = {name: torch.tensor(list(part), dtype=torch.uint8) for name, part in packed.items()}
        size = torch.empty(0, dtype=getattr(torch, spec.dtype)).element_size()
        if "values" in parts and parts["values"].numel() % size == 0:
            parts["values"] = parts["values"].view(getattr(torch, spec.dtype))
        return spec, encodings.decode(Encoded(spec, parts))

    def mutate_encoded(draw: random.Random, data: bytes) -> bytes:
        raw = json.loads(data)
        if draw.random() < 0.5:
            raw["spec"] = change(draw, raw["spec"])
        else:
            part = draw.choice(list(raw["parts"]))
            raw["parts"][part] = mutate_bytes(draw, bytes.fromhex(raw["parts"][part]) or b"\0").hex()
        return to_json(raw)

    def judge_encoded(data: bytes, found: Any) -> str | None:
        spec, tensor = found
        again = encodings.decode(encodings.encode(tensor))
        same = tuple(tensor.shape) == spec.shape and torch.equal(
            again.contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8)
        )
        return (
            None
            if same or not tensor.numel() or not tensor.dim()
            else "a tensor that does not encode to itself"
        )

    return [
        Format("encodings", "encoded.json", 150, single, mutate_encoded, read_encoded, judge_encoded),
        Format("sparse files", "file.safetensors", 100, files, mutate_safetensors, read_sparse),
        Format("training states", "state.safetensors", 60, [state], mutate_safetensors, read_state),
    ]


def _published() -> list[Format]:
    from espalier.io.spreadsheet import write_book

    curve = b"Pruned_Heads,Accuracy\r\n" + b"".join(
        f"{k},{0.9 - k / 300}\r\n".encode() for k in range(0, 144, 12)
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "book.xlsx"
        rows = [[k, 0.9 - k / 300, 0.8 - k / 300] for k in range(0, 144, 12)]
        write_book(path, {"Sheet1": [["Heads Pruned", "Trial_1", "Trial_2"], *rows]})
        book = path.read_bytes()
    order = [[i, j] for i in range(12) for j in range(12)]
    orders = json.dumps({"BERT": {"GreedyGnorm": {"layers": 12, "heads": 12, "order": order[:24]}}}).encode()
    name = "pruned_heads_accuracy(BERT)basedonGreedyGnorm.csv"
    trials = "BERTrandompruned_heads_data_2x12_1group.xlsx"

    def read(path: Path) -> Any:
        return read_sources([path.parent])

    both = {name: curve}
    return [
        Format("published.csv", name, 80, [curve], mostly(mutate_table), read),
        Format("published.xlsx", trials, 10, [book], mostly(mutate_zip, 0.85), read, around=both),
        Format("published.orders", "orders.json", 40, [orders], mostly(mutate_json), read, around=both),
    ]


# Running inputs


class Hang(BaseException):
    """Raised by the timer; no `except Exception` catches it."""


def make_input(form: Format, seed: int, number: int) -> bytes:
    """Return input `number` of a format; a base itself is the zeroth."""
    draw = random.Random(f"{seed}/{form.name}/{number}")
    base = draw.choice(form.bases)
    return base if not number else form.mutate(draw, base)


def try_input(form: Format, data: bytes, path: Path) -> tuple[str, str]:
    """Return the outcome of reading an input, and what failed."""
    path.write_bytes(data)
    with limits(len(data)):
        try:
            found = form.read(path)
        except EspalierError as error:
            return ("memory", _signature(error)) if _is_memory(error) else ("refused", "")
        except Hang as error:
            return "hang", _signature(error)
        except MemoryError as error:
            return "memory", _signature(error)
        except Exception as error:
            return ("memory" if _is_memory(error) else "bare"), _signature(error)
        try:
            wrong = form.judge(data, found)
        except Hang as error:
            return "hang", _signature(error)
        except Exception as error:  # the second opinion does not understand an input that was loaded
            wrong = f"an input that its own judge cannot read: {type(error).__name__}: {error}"[:120]
        return ("wrong", wrong) if wrong else ("loaded", "")


@contextmanager
def limits(size: int) -> Iterator[None]:
    """Limit CPU time and memory of what is inside."""

    def stop(*_: Any) -> None:
        raise Hang

    page = os.sysconf("SC_PAGE_SIZE")
    used = int(Path("/proc/self/statm").read_text().split()[5]) * page
    old, before = signal.signal(signal.SIGPROF, stop), resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + SPARE + 2 * size, before[1]))
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _is_memory(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _signature(error: BaseException) -> str:
    """Return the type of an error and the last function of espalier that it came through."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if "/espalier/" in f.filename]
    where = f" in {Path(own[-1].filename).stem}.{own[-1].name}" if own else ""
    return f"{type(error).__name__}{where}"


def prepare(form: Format, folder: Path) -> Path:
    """Put the other files of a format in place; return where its inputs are written."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in form.around.items():
        (folder / name).write_bytes(content)
    return folder / form.file


def be_quiet() -> None:
    """Silence logs and warnings, of which a million inputs have many, and use one thread."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity(100)
    torch.set_num_threads(1)


def run_chunk(form: Format, seed: int, numbers: range, path: Path, failures: Path) -> Counter[str]:
    """Try inputs in children; one that dies is replaced by another that begins after the input."""
    found = mmap.mmap(-1, len(numbers))
    at = 0
    while at < len(numbers):
        child = os.fork()
        if not child:
            _work(form, seed, numbers, at, path, failures, found)
        moved, last = time.monotonic(), at
        while os.waitpid(child, os.WNOHANG)[0] == 0:
            done = found[:].find(0, last)
            done = len(numbers) if done < 0 else done
            if done > last:
                moved, last = time.monotonic(), done
            elif time.monotonic() - moved > WALL_SECONDS:
                os.kill(child, signal.SIGKILL)
                moved = time.monotonic()
            time.sleep(0.02)
        at = found[:].find(0)
        if at < 0:
            break
        found[at] = 1 + OUTCOMES.index("died")
        _keep(failures, form, "died", "", make_input(form, seed, numbers[at]), numbers[at])
        at += 1
    return Counter(OUTCOMES[code - 1] for code in found[:])


def _work(
    form: Format, seed: int, numbers: range, at: int, path: Path, failures: Path, found: mmap.mmap
) -> None:
    code = 1
    try:
        be_quiet()
        hidden = os.open(os.devnull, os.O_WRONLY)
        os.dup2(hidden, 2)
        for i in range(at, len(numbers)):
            data = make_input(form, seed, numbers[i])
            outcome, why = try_input(form, data, path)
            if outcome not in GOOD:
                _keep(failures, form, outcome, why, data, numbers[i])
            found[i] = 1 + OUTCOMES.index(outcome)
        code = 0
    finally:
        os._exit(code)


def _keep(failures: Path, form: Format, outcome: str, why: str, data: bytes, number: int) -> None:
    """Keep the first input of each kind of failure, and the smallest."""
    name = re.sub(r"[^\w.-]+", "-", f"{form.name} {outcome} {why}").strip("-")[:120]
    file = failures / name / form.file
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.stat().st_size > len(data):
        file.write_bytes(data)
        (file.parent / "why.txt").write_text(f"{form.name}\n{outcome}\n{why}\ninput {number}\n")


def main() -> None:
    """Run inputs until there are as many as asked for, and print how they ended."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--formats", default="", help="names, separated by commas; all")
    parser.add_argument("--state", type=Path, default=Path("fuzz.json"))
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--minutes", type=float, default=1e9)
    asked = parser.parse_args()
    be_quiet()
    end = time.monotonic() + 60 * asked.minutes
    place = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        known = formats(place / "bases") if (place / "bases").mkdir() is None else []
        chosen = [f for f in known if not asked.formats or f.name in asked.formats.split(",")]
        total = sum(form.share for form in chosen)
        state = json.loads(asked.state.read_text()) if asked.state.exists() else {}
        counts = {f.name: Counter(state.get(f.name, {})) for f in chosen}
        wanted = {f.name: round(asked.inputs * f.share / total) for f in chosen}
        paths = {form.name: prepare(form, place / str(i)) for i, form in enumerate(chosen)}
        while time.monotonic() < end:
            left = [f for f in chosen if counts[f.name].total() < wanted[f.name]]
            if not left:
                break
            form = min(left, key=lambda f: counts[f.name].total() / wanted[f.name])
            begin = counts[form.name].total()
            numbers = range(begin, min(begin + round(CHUNK * form.share), wanted[form.name]))
            counts[form.name] += run_chunk(form, asked.seed, numbers, paths[form.name], asked.failures)
            asked.state.write_text(
                json.dumps({**state, **{n: dict(c) for n, c in counts.items()}}, indent=1) + "\n"
            )
        print(table(counts))
    finally:
        shutil.rmtree(place, ignore_errors=True)
    sys.exit(any(c[o] for c in counts.values() for o in OUTCOMES if o not in GOOD))


def table(counts: dict[str, Counter[str]]) -> str:
    """Return the counts as a Markdown table."""
    every = {**counts, "all": sum(counts.values(), Counter())}
    lines = ["| format | inputs | " + " | ".join(OUTCOMES) + " |", "|---" * (len(OUTCOMES) + 2) + "|"]
    for name, count in every.items():
        lines.append(
            f"| {name} | {count.total():,} | " + " | ".join(f"{count[o]:,}" for o in OUTCOMES) + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
