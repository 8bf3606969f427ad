"""A training run. Every step depends on the seed and its number alone, so it can resume after any of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..core import distributed
from ..core.errors import DependencyError, InvalidValueError, UnsupportedError
from ..core.progress import OnProgress, Progress
from ..core.terminal import log
from ..core.types import PreTrainedModel
from ..engine.memory import Memory, memory_length
from ..engine.products import fast_products
from .callbacks import Callback
from .data import StreamData, TrainingData
from .folder import explain_unusable, read_state, state_file, weights_of, write_state
from .optimizer import MOMENTS, lr_factor, make_optimizer

if TYPE_CHECKING:
    from accelerate import Accelerator

STATE_SECONDS = 60.0  # between two states, if `save_every` is not given
LOSS_POINTS = 200  # of the loss curve in the history
SMOOTHED = 20  # steps whose mean loss is shown as progress

Evaluate = Callable[["PreTrainedModel"], Mapping[str, Any]]
Best = Callable[[Mapping[str, Any]], float]  # of the evaluation of an epoch; bigger is better
Loss = Callable[[nn.Module, Mapping[str, Any]], Tensor]  # of the model as accelerate runs it, and a batch


def model_loss(model: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    """Return the loss that the model computes itself."""
    return model(**batch).loss


def make_accelerator(precision: str) -> Accelerator:
    """Return an accelerator that runs whole models on every process and leaves autocast to the loop."""
    try:
        from accelerate import Accelerator, DistributedDataParallelKwargs
    except ImportError:
        raise DependencyError("accelerate", "train", "training") from None
    # Some models have parts that a task does not use; several processes must know.
    unused = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(kwargs_handlers=[unused])
    split, mixed = accelerator.distributed_type.value, accelerator.mixed_precision
    if split in ("FSDP", "DEEPSPEED", "MEGATRON_LM", "XLA"):
        raise UnsupportedError(f"accelerate splits the model ({split}): use accelerate launch --multi_gpu …")
    # accelerate fixes its precision once for the whole program, so autocast is done here; both must agree.
    if mixed not in ("no", precision):
        advice = "Use accelerate launch --mixed_precision no …"
        raise InvalidValueError(
            f"accelerate is set to {mixed}, `precision` to {precision}. {advice}", "precision"
        )
    processor = torch.backends.cpu.get_cpu_capability()
    if precision == "bf16" and accelerator.device.type == "cpu" and processor in ("AVX2", "DEFAULT"):
        log.warning("this processor (%s) has no bf16 arithmetic: fp32 is much faster", processor)
    return accelerator


class Run:
    """The model, the data and the optimizer of a training, how far it is, and its losses so far."""

    def __init__(
        self,
        model: PreTrainedModel,
        data: TrainingData | StreamData,
        settings: Mapping[str, Any],
        accelerator: Accelerator,
        callback: Callback | None = None,
        loss: Loss = model_loss,
        best: Best | None = None,
    ):
        self.model, self.data, self.settings, self.accelerator = model, data, settings, accelerator
        self.callback, self.loss = callback or Callback(), loss
        self.memories = {"model": (model, Memory())} if isinstance(data, StreamData) else {}
        if self.memories and (teacher := getattr(loss, "teacher", None)) is not None:
            self.memories |= {"teacher": (teacher, Memory())} if memory_length(teacher) else {}
        self.steps_per_epoch = data.count(settings["batch_size"])
        self.total_steps = self.steps_per_epoch * settings["epochs"]
        self.step, self.seconds, self.lr = 0, 0.0, 0.0
        self.losses: list[float] = []
        self.epochs: list[dict[str, Any]] = []
        self.best, self.best_weights = best, dict[str, Tensor]()  # of the best epoch so far
        model.to(accelerator.device)
        self.trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
        coarse = {str(p.dtype) for p in self.trainable.values()} & {"torch.float16", "torch.bfloat16"}
        if not self.trainable:
            raise UnsupportedError("every weight is frozen: set requires_grad on some of them")
        if coarse:
            advice = "Load the model in torch.float32; `precision` bf16 computes in bf16 all the same"
            raise UnsupportedError(f"the weights are {min(coarse)}, too coarse for small steps. {advice}")
        matrices = [p for p in self.trainable.values() if p.dim() > 1]
        vectors = [p for p in self.trainable.values() if p.dim() < 2]  # biases and norms do not decay
        decays = ((matrices, settings["weight_decay"]), (vectors, 0.0))
        groups = [{"params": some, "weight_decay": decay} for some, decay in decays if some]
        name, device = settings.get("optimizer", "adamw"), accelerator.device.type
        self.optimizer: Any = make_optimizer(name, groups, settings["lr"], device)

    @contextmanager
    def prepared(self) -> Iterator[nn.Module]:
        """Give the model as accelerate runs it; afterwards it is an ordinary model again."""
        try:
            wrapped, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)
            yield wrapped
        finally:
            if self.model.__dict__.pop("_original_forward", None) is not None:
                del self.model.forward
            self.model.__dict__.pop("_is_accelerate_prepared", None)
            self.optimizer.zero_grad()
            self.model.eval()

    def do_steps(
        self,
        wrapped: nn.Module,
        folder: Path | None,
        save_every: int | None,
        evaluate: Evaluate | None,
        on_progress: OnProgress,
    ) -> None:
        """Do all steps that are left."""
        main = self.accelerator.is_main_process
        saved, wait = time.monotonic(), STATE_SECONDS
        for epoch in range(self.step // self.steps_per_epoch, self.settings["epochs"]):
            batches = self.data.order(self.settings["batch_size"], self.settings["seed"], epoch)
            if self.step % self.steps_per_epoch == 0:
                for _, memory in self.memories.values():
                    memory.tensors = ()
            if (begin := getattr(self.loss, "begin_epoch", None)) is not None:
                begin(epoch, self.settings["epochs"])
            self.model.train()
            while self.step < self.steps_per_epoch * (epoch + 1):
                start = time.monotonic()
                with fast_products():
                    self._do_step(wrapped, batches[self.step % self.steps_per_epoch])
                self.seconds += time.monotonic() - start
                if main:
                    mean = np.mean(self.losses[-SMOOTHED:])
                    message = f"epoch {epoch + 1}, loss {mean:.4f}, lr {self.lr:.2e}"
                    on_progress(Progress("training", self.step, self.total_steps, message))
                due = self.step % save_every == 0 if save_every else start - saved > wait
                # The last state of an epoch is written after its evaluation, which it must hold.
                last = self.step % self.steps_per_epoch == 0
                if last:
                    self._end_epoch(epoch, evaluate)  # in every process: they share the examples
                if self.memories and self.accelerator.num_processes > 1:  # all must know: each holds a part
                    due = distributed.all_sum(torch.tensor(float(due and main))).item() > 0
                if folder is not None and (due or last) and (main or self.memories):
                    start = time.monotonic()
                    self.save(state_file(folder), main)
                    saved = time.monotonic()
                    wait = max(STATE_SECONDS, 20 * (saved - start))  # a twentieth of the time at most

    def _do_step(self, wrapped: nn.Module, rows: list[int]) -> None:
        """Do the step of one batch, of which every process takes its share."""
        settings, device = self.settings, self.accelerator.device
        processes, rank = self.accelerator.num_processes, self.accelerator.process_index
        seeds = np.random.SeedSequence([settings["seed"], self.step, rank])
        torch.manual_seed(int(seeds.generate_state(1)[0]))
        schedule, end = settings.get("lr_schedule", "linear"), settings.get("lr_end", 0.0) / settings["lr"]
        factor = lr_factor(self.step, self.total_steps, settings["warmup"], schedule, end)
        lr = self.lr = settings["lr"] * factor
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group.get("lr_factor", 1.0)  # parameters of a callback may learn faster
        share = rows[rank::processes]
        batch = {k: v.to(device) for k, v in self.data.batch(share or rows[:1]).items()}
        options = {"use_cache": False} if self.data.labels is None else {}
        with ExitStack() as stack:
            for model, memory in self.memories.values():
                stack.enter_context(memory.carried(model))
            enabled = settings["precision"] == "bf16"
            stack.enter_context(torch.autocast(device.type, torch.bfloat16, enabled=enabled))
            loss = self.loss(wrapped, {**batch, **options})
        # Processes are averaged, but their shares may differ by one example, or be empty.
        loss = loss * (len(share) * processes / len(rows))
        self.accelerator.backward(loss)
        self.callback.after_backward(self)
        clip = settings["clip"] or math.inf
        norm = float(self.accelerator.clip_grad_norm_(self.trainable.values(), clip))
        mean = self.accelerator.reduce(loss.detach().float(), "mean").item()
        if not (math.isfinite(mean) and math.isfinite(norm)):
            seen = (
                f"at step {self.step + 1} of {self.total_steps} the loss is {mean:g}, the gradient {norm:g}"
            )
            raise InvalidValueError(f"{seen}, the learning rate {lr:.3g}; start over with a lower `lr`", "lr")
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step += 1
        self.losses.append(mean)
        self.callback.after_step(self)

    def _end_epoch(self, epoch: int, evaluate: Evaluate | None) -> None:
        losses = self.losses[-self.steps_per_epoch :]
        row = {"epoch": epoch + 1, "loss": sum(losses) / len(losses), "seconds": self.seconds}
        if evaluate is not None:
            self.model.eval()
            with torch.no_grad():
                row |= evaluate(self.model)
        if (
            self.best is not None
            and self.settings["epochs"] > 1
            and self.best(row) > max(map(self.best, self.epochs), default=-math.inf)
        ):
            self.best_weights = {name: t.detach().clone() for name, t in weights_of(self.model).items()}
        self.epochs.append(row)
        self.callback.after_epoch(self)

    def use_best(self) -> None:
        """Take the weights of the best epoch."""
        with torch.no_grad():
            for name, t in weights_of(self.model).items():
                if name in self.best_weights:
                    t.copy_(self.best_weights[name])

    def history(self) -> dict[str, Any]:
        """Return steps, seconds, a row for each epoch, and the loss curve, averaged from point to point."""
        width = math.ceil(len(self.losses) / LOSS_POINTS)
        windows = [self.losses[i : i + width] for i in range(0, len(self.losses), width)]
        ends = [min(i * width, self.total_steps) for i in range(1, len(windows) + 1)]
        loss = [{"step": end, "loss": sum(w) / len(w)} for end, w in zip(ends, windows)]
        return {"steps": self.total_steps, "seconds": self.seconds, "epochs": self.epochs, "loss": loss}

    def _gather_memory(self) -> dict[str, Tensor]:
        """Return the memory of all rows, [rows, layers, tokens, width], by name."""
        out, count = {}, self.settings["batch_size"]
        mine = range(count)[self.accelerator.process_index :: self.accelerator.num_processes]
        for name, (_, memory) in self.memories.items():
            if memory.tensors:
                rows = torch.stack(list(memory.tensors), 1)
                out[f"memory/{name}"] = distributed.gather(dict(zip(mine, rows)), count).to(rows.dtype)
        return out

    def save(self, file: Path, main: bool = True) -> None:
        """Write weights, moments, the callback's state, memory and the losses to one file."""
        memory = self._gather_memory()
        if not main:
            return
        tensors = {f"weight/{name}": t for name, t in weights_of(self.model).items()}
        for name, p in self.trainable.items():
            state = self.optimizer.state.get(p, {})
            tensors |= {f"{what}/{name}": state[what] for what in MOMENTS if what in state}
        tensors |= {f"callback/{name}": t for name, t in self.callback.state().items()} | memory
        tensors |= {f"best/{name}": t for name, t in self.best_weights.items()}
        tensors["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        about = {"step": self.step, "epoch": self.step // self.steps_per_epoch, "seed": self.settings["seed"]}
        about |= {"settings": self.settings, "seconds": self.seconds, "epochs": self.epochs}
        write_state(file, tensors, about)

    def resume(self, file: Path) -> None:
        """Resume from a state, if there is one."""
        if not file.exists():
            return
        about, tensors = read_state(file)
        with explain_unusable(file), torch.no_grad():
            for name, t in weights_of(self.model).items():
                t.copy_(tensors[f"weight/{name}"])
            for name, p in self.trainable.items():
                found = {what: tensors.get(f"{what}/{name}") for what in MOMENTS}
                found = {what: t.clone().to(p.device) for what, t in found.items() if t is not None}
                if found:  # a weight that was never used has no moments
                    self.optimizer.state[p] = found
            for name, (_, memory) in self.memories.items():
                if (rows := tensors.get(f"memory/{name}")) is not None:
                    share = rows[self.accelerator.process_index :: self.accelerator.num_processes]
                    share = share if len(share) else rows[:1]  # as a step does
                    memory.tensors = tuple(share.to(self.accelerator.device).unbind(1))
            own = [name for name in tensors if name.startswith("callback/")]
            self.callback.load_state({name.removeprefix("callback/"): tensors[name] for name in own})
            kept = [name for name in tensors if name.startswith("best/")]
            self.best_weights = {name.removeprefix("best/"): tensors[name].clone() for name in kept}
            self.losses, self.step = tensors["losses"].tolist(), int(about["step"])
            self.seconds, self.epochs = float(about["seconds"]), list(about["epochs"])
        if self.accelerator.is_main_process:
            log.info("resuming at step %d of %d", self.step, self.total_steps)
