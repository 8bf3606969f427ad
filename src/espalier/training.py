"""Fine-tuning: one loop that can be killed at any moment and goes on to the same weights.

Nothing random is remembered: the order of the examples follows from the seed and the epoch, dropout from
the seed and the step. So a state is weights, moments and a step, in one safetensors file.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import __version__
from .batching import Row, encode
from .core import log
from .errors import EspalierError
from .jsonfile import read_json, write_json
from .store import load, save
from .tasks.task import KINDS, Examples

STATE_VERSION = 1
RECORD = "training.json"
CHUNK = 50  # batches that are sorted by length together: little padding, and still well mixed
SECONDS = 60.0  # between two states, if nobody says how many steps
POINTS = 200  # of the loss curve in the record
PRECISIONS = ("fp32", "bf16")

Evaluate = Callable[[Any], Mapping[str, Any]]
Watch = Callable[[Mapping[str, Any]], None]


def train(
    model: Any,
    tokenizer: Any,
    examples: Examples,
    *,
    kind: str = "classification",
    epochs: int = 3,
    batch: int = 32,
    rate: float = 5e-5,
    warmup: float = 0.1,
    decay: float = 0.01,
    clip: float = 1.0,
    length: int = 128,
    seed: int = 0,
    precision: str = "fp32",
    folder: str | Path | None = None,
    fresh: bool = False,
    save_every: int | None = None,
    origin: Mapping[str, Any] | None = None,
    evaluate: Evaluate | None = None,
    progress: Watch | None = None,
) -> dict[str, Any]:
    """Fine-tune the model in place, cut or not, and give the history of it.

    With a `folder`, states are kept there on the way (every `save_every` steps, or every minute), an
    interrupted training goes on where it was, and the model is saved in the end. On a CPU the weights are bit
    for bit those of a run that was never interrupted. `fresh` throws away what the folder holds.
    `evaluate(model)` is asked after every epoch; `progress` is told of every step.
    """
    settings: dict[str, Any] = {
        "kind": kind,
        "epochs": epochs,
        "batch": batch,
        "rate": rate,
        "warmup": warmup,
        "decay": decay,
        "clip": clip,
        "length": length,
        "seed": seed,
        "precision": precision,
    }
    _check(settings)
    data = _data(model, tokenizer, examples, kind, length)
    accelerator = _accelerator(precision)
    settings |= {"processes": accelerator.num_processes, "examples": examples.fingerprint()}
    settings |= {"model": _name(model), "weights": _shapes(model)}
    place = None if folder is None else Path(folder)
    if place is not None:
        history = _standing(place, settings, fresh, accelerator)
        if history is not None:
            log.info("%s is already trained with these settings: nothing to do", place)
            model.load_state_dict(load(place).state_dict())
            return history
    run = _Run(model, data, settings, accelerator)
    if place is not None:
        run.resume(_state_file(place))
    dice = [accelerator.device] if accelerator.device.type == "cuda" else []
    with torch.random.fork_rng(dice), run.prepared() as wrapped:  # the caller's dice stay theirs
        run.steps(wrapped, place, save_every, evaluate, progress)
    history = run.history()
    if place is not None and accelerator.is_main_process:
        about = {"settings": settings, "origin": dict(origin or {}), "history": history}
        _finish(model, tokenizer, place, about)
    accelerator.wait_for_everyone()
    return history


# ------------------------------------------------------------------------------------------ the data


@dataclass(frozen=True)
class _Data:
    """Every example, tokenised once."""

    rows: list[Row]
    labels: Tensor | None  # None: the text is its own answer
    tokenizer: Any

    def batch(self, places: Sequence[int]) -> dict[str, Any]:
        if self.labels is None:  # blocks of one length: nothing to pad
            ids = torch.tensor([self.rows[i]["input_ids"] for i in places])
            return {"input_ids": ids, "labels": ids.clone()}
        padded = self.tokenizer.pad([self.rows[i] for i in places], return_tensors="pt")
        return {**padded, "labels": self.labels[places]}


def order(lengths: Sequence[int], batch: int, seed: int, epoch: int) -> list[list[int]]:
    """The batches of one epoch: mixed, yet of similar length within each. Seed and epoch decide alone."""
    dice = np.random.default_rng([seed, epoch])
    places = dice.permutation(len(lengths)).tolist()
    batches = []
    for start in range(0, len(places), CHUNK * batch):
        chunk = sorted(places[start : start + CHUNK * batch], key=lambda i: lengths[i])
        batches += [chunk[i : i + batch] for i in range(0, len(chunk), batch)]
    return [batches[i] for i in dice.permutation(len(batches))]


def _data(model: Any, tokenizer: Any, examples: Examples, kind: str, length: int) -> _Data:
    """Tokenise, and find out now what would go wrong later."""
    if not len(examples):
        raise EspalierError("there is nothing to train on: the examples are empty")
    takes = inspect.signature(model.forward).parameters
    if "labels" not in takes:
        top = "CausalLM" if kind == "language" else "SequenceClassification"
        raise EspalierError(
            f"{type(model).__name__} has no head that could learn. "
            f"Load it as AutoModelFor{top}.from_pretrained(…)"
        )
    config, labels = model.config.get_text_config(), None
    if kind == "language":
        rows = _blocks(tokenizer, examples.texts, length)
    else:
        labels = _labels(model, examples, kind)
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        if tokenizer.pad_token_id is None:
            raise EspalierError("the tokenizer has no token to pad with. Give it a pad_token")
        if config.pad_token_id is None:
            config.pad_token_id = tokenizer.pad_token_id
        rows = encode(examples, tokenizer, length=min(length, tokenizer.model_max_length))
        rows = [{name: row[name] for name in row if name in takes} for row in rows]
    empty = [i for i, row in enumerate(rows) if not row["input_ids"]]
    if empty:
        raise EspalierError(f"text {empty[0] + 1} of {len(rows)} is empty; leave it out")
    longest, most = max(len(r["input_ids"]) for r in rows), _positions(config)
    if longest > most:
        raise EspalierError(f"this model reads at most {most} tokens. Type --length {most}")
    highest = max(max(r["input_ids"]) for r in rows)
    known = model.get_input_embeddings().weight.shape[0]
    if highest >= known:
        raise EspalierError(
            f"the tokenizer gives token {highest}, the model knows {known}: they do not belong together"
        )
    return _Data(rows, labels, tokenizer)


def _labels(model: Any, examples: Examples, kind: str) -> Tensor:
    outputs, labels = model.config.num_labels, examples.labels
    if labels is None:
        raise EspalierError(f"{kind} needs an answer for every text; these examples have none")
    regression = kind == "regression"
    if regression and outputs != 1:
        raise EspalierError(f"regression needs a model with num_labels=1; this one has {outputs}")
    if regression and not all(map(math.isfinite, labels)):
        raise EspalierError("some answers are missing or infinite; leave those examples out")
    wrong = [] if regression else [x for x in labels if outputs < 2 or x not in range(outputs)]
    if wrong:
        raise EspalierError(
            f"label {wrong[0]:g} does not fit this model: it has {outputs} classes, numbered from 0. "
            "Load it with num_labels=…"
        )
    # Said, because models guess it from the first labels they see, or remember it from other ones.
    model.config.problem_type = "regression" if regression else "single_label_classification"
    return torch.tensor(labels, dtype=torch.float if regression else torch.long)


def _blocks(tokenizer: Any, texts: Sequence[str], length: int) -> list[Row]:
    """All documents one after the other, each ended, cut into blocks of one length; the rest is left out."""
    if tokenizer.eos_token_id is None:
        raise EspalierError("the tokenizer has no token that ends a text. Give it an eos_token")
    found = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    line = [token for row in found for token in (*row, tokenizer.eos_token_id)]
    length = min(length, len(line))
    if length < 2:
        raise EspalierError("there is nothing to train on: the texts are empty")
    starts = range(0, len(line) - length + 1, length)
    return [{"input_ids": line[i : i + length]} for i in starts]


def _positions(config: Any) -> int:
    most = getattr(config, "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else 10**9


# ------------------------------------------------------------------------------------------ the loop


def share_of_rate(step: int, steps: int, warmup: float) -> float:
    """Up in a straight line while warming up, then down to nothing."""
    rise = math.ceil(steps * warmup)
    return (step + 1) / rise if step < rise else (steps - step) / (steps - rise)


def _accelerator(precision: str) -> Any:
    try:
        from accelerate import Accelerator, DistributedDataParallelKwargs
    except ImportError:
        raise EspalierError(
            "training needs accelerate. Type: pip install 'espalier[train]'"
        ) from None
    # Some models have parts that a task does not use; several processes must know.
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(kwargs_handlers=[unused])
    if accelerator.distributed_type.value in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"):
        raise EspalierError(
            f"accelerate is set to {accelerator.distributed_type.value}, which splits the model; here every "
            "process holds all of it. Type: accelerate launch --multi_gpu …"
        )
    # Its own precision is fixed once for the whole program. So autocast is ours; they must not disagree.
    if accelerator.mixed_precision not in ("no", precision):
        raise EspalierError(
            f"accelerate is set to {accelerator.mixed_precision}, this training to {precision}. "
            "Type: accelerate launch --mixed_precision no …"
        )
    processor = torch.backends.cpu.get_cpu_capability()
    if (
        precision == "bf16"
        and accelerator.device.type == "cpu"
        and processor in ("AVX2", "DEFAULT")
    ):
        log.warning("this processor (%s) has no bf16 arithmetic: fp32 is much faster", processor)
    return accelerator


class _Run:
    """A training under way: what it learns from, how far it is, and what came of it so far."""

    def __init__(self, model: Any, data: _Data, settings: Mapping[str, Any], accelerator: Any):
        self.model, self.data, self.settings, self.accelerator = model, data, settings, accelerator
        self.per_epoch = math.ceil(len(data.rows) / settings["batch"])
        self.total = self.per_epoch * settings["epochs"]
        self.step, self.seconds = 0, 0.0
        self.losses: list[float] = []
        self.epochs: list[dict[str, Any]] = []
        model.to(accelerator.device)
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.named:
            raise EspalierError("every weight is frozen: set requires_grad on some of them")
        rough = {p.dtype for p in self.named.values()} & {torch.float16, torch.bfloat16}
        if rough:
            raise EspalierError(
                f"the weights are {min(map(str, rough))}, too coarse for small steps. Load the model with "
                "dtype=torch.float32; precision='bf16' computes in bf16 all the same"
            )
        weights = [p for p in self.named.values() if p.dim() > 1]
        others = [p for p in self.named.values() if p.dim() < 2]  # biases and norms do not decay
        groups = [(weights, settings["decay"]), (others, 0.0)]
        self.optimiser = torch.optim.AdamW(
            [{"params": group, "weight_decay": decay} for group, decay in groups if group],
            lr=settings["rate"],
            fused=accelerator.device.type in ("cpu", "cuda"),
        )

    @contextmanager
    def prepared(self) -> Iterator[Any]:
        """The model as accelerate runs it; afterwards it is an ordinary model again."""
        try:
            wrapped, self.optimiser = self.accelerator.prepare(self.model, self.optimiser)
            yield wrapped
        finally:
            if self.model.__dict__.pop("_original_forward", None) is not None:
                del self.model.forward
            self.model.__dict__.pop("_is_accelerate_prepared", None)
            self.optimiser.zero_grad()
            self.model.eval()

    def steps(
        self,
        wrapped: Any,
        place: Path | None,
        save_every: int | None,
        evaluate: Evaluate | None,
        progress: Watch | None,
    ) -> None:
        """All that is left to do."""
        main = self.accelerator.is_main_process
        lengths = [len(row["input_ids"]) for row in self.data.rows]
        saved, wait = time.monotonic(), SECONDS
        for epoch in range(self.step // self.per_epoch, self.settings["epochs"]):
            batches = order(lengths, self.settings["batch"], self.settings["seed"], epoch)
            self.model.train()
            while self.step < self.per_epoch * (epoch + 1):
                start = time.monotonic()
                now = self._step(wrapped, batches[self.step % self.per_epoch])
                self.seconds += time.monotonic() - start
                if main and progress is not None:
                    progress({**now, "steps": self.total, "epoch": epoch + 1})
                due = self.step % save_every == 0 if save_every else start - saved > wait
                # The last state of an epoch is written after its evaluation, or it could get lost.
                if main and place is not None and due and self.step % self.per_epoch:
                    start = time.monotonic()
                    self.save(_state_file(place))
                    saved = time.monotonic()
                    wait = max(SECONDS, 20 * (saved - start))  # a twentieth of the time at most
            if main:
                self._end_epoch(epoch, evaluate)
                if place is not None:
                    self.save(_state_file(place))
                    saved = time.monotonic()

    def _step(self, wrapped: Any, places: list[int]) -> dict[str, Any]:
        """One batch, of which every process takes its share."""
        settings, device = self.settings, self.accelerator.device
        many, who = self.accelerator.num_processes, self.accelerator.process_index
        dice = np.random.SeedSequence([settings["seed"], self.step, who])
        torch.manual_seed(int(dice.generate_state(1)[0]))
        rate = settings["rate"] * share_of_rate(self.step, self.total, settings["warmup"])
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        mine = places[who::many]
        given = {k: v.to(device) for k, v in self.data.batch(mine or places[:1]).items()}
        options = {"use_cache": False} if self.data.labels is None else {}
        with torch.autocast(device.type, torch.bfloat16, enabled=settings["precision"] == "bf16"):
            loss = wrapped(**given, **options).loss
        # Processes are averaged, but their shares may differ by one example, or be none at all.
        loss = loss * (len(mine) * many / len(places))
        self.accelerator.backward(loss)
        clip = settings["clip"] or math.inf
        norm = float(self.accelerator.clip_grad_norm_(self.named.values(), clip))
        mean = self.accelerator.reduce(loss.detach().float(), "mean").item()
        if not (math.isfinite(mean) and math.isfinite(norm)):
            raise EspalierError(
                f"at step {self.step + 1} of {self.total} the loss is {mean:g}, the norm of its gradient "
                f"{norm:g}, the learning rate {rate:.3g}. Start over with a lower one: "
                f"--rate {settings['rate'] / 5:.1g} --fresh"
            )
        self.optimiser.step()
        self.optimiser.zero_grad()
        self.step += 1
        self.losses.append(mean)
        return {"step": self.step, "loss": mean, "rate": rate}

    def _end_epoch(self, epoch: int, evaluate: Evaluate | None) -> None:
        losses = self.losses[-self.per_epoch :]
        row = {"epoch": epoch + 1, "loss": sum(losses) / len(losses), "seconds": self.seconds}
        if evaluate is not None:
            self.model.eval()
            with torch.no_grad():
                row |= evaluate(self.model)
        self.epochs.append(row)

    def history(self) -> dict[str, Any]:
        """Steps, seconds in them, a row for each epoch, and the loss, averaged from point to point."""
        width = math.ceil(len(self.losses) / POINTS)
        windows = [self.losses[i : i + width] for i in range(0, len(self.losses), width)]
        ends = [min(i * width, self.total) for i in range(1, len(windows) + 1)]
        return {
            "steps": self.total,
            "seconds": self.seconds,
            "epochs": self.epochs,
            "loss": [{"step": end, "loss": sum(w) / len(w)} for end, w in zip(ends, windows)],
        }

    def save(self, file: Path) -> None:
        """Weights and moments in one file that is there whole or not at all."""
        from safetensors.torch import save_file

        tensors = {f"weight/{name}": t for name, t in _weights(self.model).items()}
        for name, p in self.named.items():
            state = self.optimiser.state.get(p, {})
            tensors |= {f"{what}/{name}": value for what, value in state.items()}
        tensors["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        about = {
            "version": STATE_VERSION,
            "step": self.step,
            "epoch": self.step // self.per_epoch,
            "seed": self.settings["seed"],
            "settings": self.settings,
            "seconds": self.seconds,
            "epochs": self.epochs,
            "checksum": _checksum(tensors),
        }
        part = file.with_suffix(".part")
        with _room(file.parent.parent):
            save_file(tensors, part, {"espalier": json.dumps(about)})
            with part.open("rb") as written:
                os.fsync(written.fileno())
            os.replace(part, file)

    def resume(self, file: Path) -> None:
        """Go on from a state, if there is one."""
        if not file.exists():
            return
        about, tensors = read_state(file)
        with _whole(file), torch.no_grad():
            for name, t in _weights(self.model).items():
                t.copy_(tensors[f"weight/{name}"])
            for name, p in self.named.items():
                if f"step/{name}" in tensors:  # what was never used has no moments
                    self.optimiser.state[p] = {
                        what: tensors[f"{what}/{name}"].clone().to(p.device)
                        for what in ("step", "exp_avg", "exp_avg_sq")
                    }
            self.losses, self.step = tensors["losses"].tolist(), int(about["step"])
            self.seconds, self.epochs = float(about["seconds"]), list(about["epochs"])
        if self.accelerator.is_main_process:
            log.info("going on at step %d of %d", self.step, self.total)


# ------------------------------------------------------------------------------------------ the state


def _state_file(folder: Path) -> Path:
    return folder / "training" / "state.safetensors"


def read_state(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a state says of itself, and its tensors."""
    from safetensors import safe_open

    with _whole(file):
        with safe_open(file, "pt") as state:
            about = json.loads(state.metadata()["espalier"])
            tensors = {name: state.get_tensor(name) for name in state.keys()}  # noqa: SIM118
        if about["version"] > STATE_VERSION:
            raise ValueError("a newer espalier wrote it")
        if about["checksum"] != _checksum(tensors):
            raise ValueError("its checksum is wrong")
        return about, tensors


@contextmanager
def _whole(file: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise EspalierError(
            f"the state of the interrupted training, {file}, cannot be used: {error}. "
            "Start over with --fresh (in Python: fresh=True)"
        ) from None


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    """What cannot be written ends in a sentence, and the state before it stays."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError, EspalierError) as error:
        with suppress(OSError):
            _state_file(folder).with_suffix(".part").unlink()
        cause = error.__cause__ or error  # the store says more than is true here
        why = getattr(cause, "strerror", None) or cause
        hope = ", or choose another place"
        if _state_file(folder).exists():
            hope = ": the last state is kept, and the same command goes on from there"
        raise EspalierError(f"cannot write {folder}: {why}. Make room{hope}") from error


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].flatten().view(torch.uint8).numpy().data, total)
    return total


def _weights(model: Any) -> dict[str, Tensor]:
    """Parameters and buffers by name, tied ones once."""
    named = model.state_dict(keep_vars=True).items()
    return dict({id(t): (name, t) for name, t in named}.values())


# ------------------------------------------------------------------------------------------ the folder


def _standing(
    folder: Path, settings: Mapping[str, Any], fresh: bool, accelerator: Any
) -> dict[str, Any] | None:
    """The history if all is done already, None if something is to do, an error if it must not be done."""
    state, record = _state_file(folder), folder / RECORD
    if folder.exists() and not folder.is_dir():
        raise EspalierError(f"{folder} is a file; give the name of a folder")
    ours = state.parent.is_dir() or record.exists()
    if not ours and folder.is_dir() and any(folder.iterdir()):
        raise EspalierError(f"{folder} holds something else than a training; choose another name")
    if not fresh and state.exists():
        _compare(folder, "an interrupted", read_state(state)[0].get("settings"), settings)
    elif not fresh and record.exists():
        found = read_json(record)
        _compare(folder, "a finished", found.get("settings"), settings)
        return dict(found["history"])
    accelerator.wait_for_everyone()  # nobody changes the folder before everybody has looked
    if accelerator.is_main_process:
        if fresh:
            shutil.rmtree(state.parent, ignore_errors=True)
        with _room(folder):  # better found out now than after the first minute
            state.parent.mkdir(parents=True, exist_ok=True)
    accelerator.wait_for_everyone()
    return None


def _compare(folder: Path, what: str, then: Any, now: Mapping[str, Any]) -> None:
    then = then if isinstance(then, dict) else {}
    differ = [
        f"{name} {then.get(name)} (now {now.get(name)})"
        for name in {**then, **now}
        if then.get(name) != now.get(name)
    ]
    if differ:
        raise EspalierError(
            f"{folder} holds {what} training with other settings: {', '.join(differ)}. Type those, choose "
            "another folder, or start over with --fresh (in Python: fresh=True)"
        )


def _finish(model: Any, tokenizer: Any, folder: Path, about: Mapping[str, Any]) -> None:
    """Put the model into its folder file by file, the record last; only then the state may go."""
    import accelerate
    import transformers

    versions = {"espalier": __version__, "torch": torch.__version__}
    versions |= {"transformers": transformers.__version__, "accelerate": accelerate.__version__}
    inside = _state_file(folder).with_name("finished")
    with _room(folder):
        shutil.rmtree(inside, ignore_errors=True)
        save(model, inside, tokenizer=tokenizer, origin=about["origin"])
        write_json(inside / RECORD, {**about, "versions": versions})
        new = {file.name for file in inside.iterdir()}
        for old in (*folder.glob("model*.safetensors*"), folder / "modeling_espalier.py"):
            if old.name not in new:  # shards and code of a training before this one
                old.unlink(missing_ok=True)
        for name in sorted(new, key=lambda name: name == RECORD):
            os.replace(inside / name, folder / name)
        shutil.rmtree(inside.parent)


# ------------------------------------------------------------------------------------------ what was asked


def _check(settings: Mapping[str, Any]) -> None:
    for name, fits, want in (
        ("kind", settings["kind"] in KINDS, f"one of {', '.join(KINDS)}"),
        ("precision", settings["precision"] in PRECISIONS, " or ".join(PRECISIONS)),
        ("epochs", settings["epochs"] >= 1, "at least 1"),
        ("batch", settings["batch"] >= 1, "at least 1"),
        ("length", settings["length"] >= 2, "at least 2"),
        ("rate", 0 < settings["rate"] < math.inf, "more than 0"),
        ("warmup", 0 <= settings["warmup"] < 1, "a fraction below 1"),
        ("decay", settings["decay"] >= 0, "0 or more"),
        ("clip", settings["clip"] >= 0, "more than 0, or 0 for no clipping"),
        ("seed", settings["seed"] >= 0, "0 or more"),
    ):
        if not fits:
            raise EspalierError(f"{name} is {settings[name]}; it must be {want}")


def _name(model: Any) -> str:
    name = str(getattr(model.config, "_name_or_path", "") or "")
    name = Path(name).name if Path(name).exists() else name  # no paths of this machine
    return f"{type(model).__name__} {name}".strip()


def _shapes(model: Any) -> str:
    """A model that is cut or frozen otherwise is another model."""
    shapes = [(name, tuple(p.shape), p.requires_grad) for name, p in model.named_parameters()]
    count = sum(p.numel() for p in model.parameters())
    return f"{count:,} in {len(shapes)} tensors ({zlib.crc32(repr(shapes).encode()):08x})"
