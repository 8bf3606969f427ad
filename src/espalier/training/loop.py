"""The loop: every step follows from the seed and its number alone, so that any of them can be the last."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.errors import EspalierError
from ..core.log import log
from .checkpoint import STATE_VERSION, checksum, read_state, room, state_file, weights_of, whole
from .data import Data, order
from .regime import Loss, Regime, model_loss

SECONDS = 60.0  # between two states, if nobody says how many steps
POINTS = 200  # of the loss curve in the record

Evaluate = Callable[[Any], Mapping[str, Any]]
Watch = Callable[[Mapping[str, Any]], None]


def share_of_rate(step: int, steps: int, warmup: float) -> float:
    """Up in a straight line while warming up, then down to nothing."""
    rise = math.ceil(steps * warmup)
    return (step + 1) / rise if step < rise else (steps - step) / (steps - rise)


def accelerator_of(precision: str) -> Any:
    try:
        from accelerate import Accelerator, DistributedDataParallelKwargs
    except ImportError:
        raise EspalierError("training needs accelerate. Type: pip install 'espalier[train]'") from None
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
    if precision == "bf16" and accelerator.device.type == "cpu" and processor in ("AVX2", "DEFAULT"):
        log.warning("this processor (%s) has no bf16 arithmetic: fp32 is much faster", processor)
    return accelerator


class Run:
    """A training under way: what it learns from, how far it is, and what came of it so far."""

    def __init__(
        self,
        model: Any,
        data: Data,
        settings: Mapping[str, Any],
        accelerator: Any,
        regime: Regime | None = None,
        loss: Loss = model_loss,
    ):
        self.model, self.data, self.settings, self.accelerator = model, data, settings, accelerator
        self.regime, self.loss = regime or Regime(), loss
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
                    self.save(state_file(place))
                    saved = time.monotonic()
                    wait = max(SECONDS, 20 * (saved - start))  # a twentieth of the time at most
            self._end_epoch(epoch, evaluate)  # all of them: they share the examples
            if main and place is not None:
                self.save(state_file(place))
                saved = time.monotonic()

    def _step(self, wrapped: Any, places: list[int]) -> dict[str, Any]:
        """One batch, of which every process takes its share."""
        settings, device = self.settings, self.accelerator.device
        many, who = self.accelerator.num_processes, self.accelerator.process_index
        dice = np.random.SeedSequence([settings["seed"], self.step, who])
        torch.manual_seed(int(dice.generate_state(1)[0]))
        rate = settings["rate"] * share_of_rate(self.step, self.total, settings["warmup"])
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group.get("times", 1.0)  # a regime's own parameters may go faster
        mine = places[who::many]
        given = {k: v.to(device) for k, v in self.data.batch(mine or places[:1]).items()}
        options = {"use_cache": False} if self.data.labels is None else {}
        with torch.autocast(device.type, torch.bfloat16, enabled=settings["precision"] == "bf16"):
            loss = self.loss(wrapped, {**given, **options})
        # Processes are averaged, but their shares may differ by one example, or be none at all.
        loss = loss * (len(mine) * many / len(places))
        self.accelerator.backward(loss)
        self.regime.after_backward(self)
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
        self.regime.after_step(self)
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

        tensors = {f"weight/{name}": t for name, t in weights_of(self.model).items()}
        for name, p in self.named.items():
            state = self.optimiser.state.get(p, {})
            tensors |= {f"{what}/{name}": value for what, value in state.items()}
        tensors |= {f"regime/{name}": t for name, t in self.regime.tensors().items()}
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
            "checksum": checksum(tensors),
        }
        part = file.with_suffix(".part")
        with room(file.parent.parent):
            save_file(tensors, part, {"espalier": json.dumps(about)})
            with part.open("rb") as written:
                os.fsync(written.fileno())
            os.replace(part, file)

    def resume(self, file: Path) -> None:
        """Go on from a state, if there is one."""
        if not file.exists():
            return
        about, tensors = read_state(file)
        with whole(file), torch.no_grad():
            for name, t in weights_of(self.model).items():
                t.copy_(tensors[f"weight/{name}"])
            for name, p in self.named.items():
                if f"step/{name}" in tensors:  # what was never used has no moments
                    self.optimiser.state[p] = {
                        what: tensors[f"{what}/{name}"].clone().to(p.device)
                        for what in ("step", "exp_avg", "exp_avg_sq")
                    }
            own = {n.removeprefix("regime/"): t for n, t in tensors.items() if n.startswith("regime/")}
            self.regime.restore(own)
            self.losses, self.step = tensors["losses"].tolist(), int(about["step"])
            self.seconds, self.epochs = float(about["seconds"]), list(about["epochs"])
        if self.accelerator.is_main_process:
            log.info("going on at step %d of %d", self.step, self.total)
