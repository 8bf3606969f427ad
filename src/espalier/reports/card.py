"""The model card: README.md in the folder of a model, in the format of the hub.

Front matter for machines (what it is made from, what it does, what was measured), then for people: before and
after, what every layer keeps, how to load it, and the call that made it. It is made from the facts of a verb
alone; what comes from outside is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..architectures.sites import sites
from ..core.call import CALL
from ..core.errors import EspalierError
from ..core.terminal import visible
from ..io.files import read_json
from ..io.output import add_file
from ..io.paths import CARD, CONFIG, MODELING, MODULES, PLAN, TRAINING_RECORD
from ..pruning.cut import plan_of
from ..tasks.catalogue.glue import METRICS as GLUE
from ..tasks.catalogue.stsb import DATASET as STSB
from ..tasks.sources import is_files
from ..tokens.installation import CONFIG_KEY
from .budgets import verdict_lines
from .outcome import before_and_after, layers_table
from .tables import Table, escape

DATASETS = {**dict.fromkeys(GLUE, "nyu-mll/glue"), "stsb": STSB}
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
# a path from the root of this machine, up to its last part
FOLDERS = re.compile(r"""(?<![\w.~/])(?:[A-Za-z]:[\\/]|/)(?:[^\s,='"/\\]+[/\\])+""")
# how the name of a class ends -> what it is for, and what loads it
KINDS = {
    "ForSequenceClassification": ("text-classification", "AutoModelForSequenceClassification"),
    "ForCausalLM": ("text-generation", "AutoModelForCausalLM"),
    "LMHeadModel": ("text-generation", "AutoModelForCausalLM"),
}


def write_cards(facts: Mapping[str, Any], model: Any, source: Any, task: Any, *, overwrite: bool) -> None:
    """Write the card of a pruned or recovered model into its folder, of a family into each one's own.

    A README.md that was written by others stays, unless `overwrite` replaces it. A dataset of the hub is
    named unless `task` is a file or a folder here, whatever that is called.
    """
    for one in facts.get("family", [facts]):
        if one.get("folder"):
            folder = Path(one["folder"])
            made = model if one is facts else None
            text = make_card(one, made, source, CALL.get(), folder, local=_is_local(task))
            add_file(folder, CARD, text, overwrite=overwrite)


def make_card(
    facts: Mapping[str, Any], model: Any, source: Any, call: str, folder: Path, *, local: bool = False
) -> str:
    """Return the card of a model as text; `local`, where its task is in files here."""
    from huggingface_hub import ModelCard

    named = escape(folder.name)
    done = _done(facts)
    body = [
        f"# {named}",
        f"{escape(facts['model'])}, {done}, by espalier. Measured on "
        f"{escape(facts['task'])}; intervals of metrics are 95 %, those of times quartiles."
        f"{_agreement(facts)}",
        "## Before and after",
        before_and_after(facts).to_markdown(),
        *(escape(line) for line in verdict_lines(facts)),
        *_picture(facts, model),
        "## Load it",
        _code(_loading(folder, model), "python"),
        "## Made by",
        _code(shorten_paths(call), "sh" if call.startswith("espalier ") else "python"),
    ]
    front = _front_matter(facts, source, folder, model, local).to_yaml()
    return str(ModelCard(f"---\n{front}\n---\n\n" + "\n\n".join(part.strip() for part in body) + "\n"))


def shorten_paths(call: str) -> str:
    """Return a call without the folders of this machine: a card is passed on.

    >>> shorten_paths("espalier prune /home/me/tuned --task ../reviews.tsv")
    'espalier prune tuned --task ../reviews.tsv'
    """
    return FOLDERS.sub("", call)


def _is_local(task: Any) -> bool:
    return isinstance(task, (str, Path)) and is_files(str(task))


def _agreement(facts: Mapping[str, Any]) -> str:
    """Say what an accuracy is where a task has no labels."""
    if not facts.get("agreement"):
        return ""
    return f" There were no labels: {facts['metric']} is agreement with {escape(facts['model'])}."


def _done(facts: Mapping[str, Any]) -> str:
    if "way" in facts:
        return "trained again after pruning" if facts["way"] == "finetune" else "taught by the dense model"
    if "tokens" in facts:
        return f"with {facts['tokens']['after']:,} of its {facts['tokens']['before']:,} tokens"
    if "budget" in facts:
        return f"pruned to {escape(facts['budget']['kind'])} {escape(str(facts['budget']['asked']))}"
    return f"with {100 * facts['removed']:.3g} % of its {escape(facts['target'])} removed"


def _front_matter(facts: Mapping[str, Any], source: Any, folder: Path, model: Any, local: bool) -> Any:
    from huggingface_hub import EvalResult, ModelCardData

    name = _class_of(folder, model)
    pipeline = next((tag for end, (tag, _) in KINDS.items() if name.endswith(end)), None)
    embeds = pipeline is None and (folder / MODULES).is_file()
    pipeline = "sentence-similarity" if embeds else pipeline
    base, old = _base_model(source), _old_card(source)
    task = str(facts["task"])
    hub = task.partition(":")[0] if HUB_NAME.fullmatch(task) else None
    dataset = None if local else DATASETS.get(task, hub)
    test, named = facts["after"]["test"], visible(folder.name, lines=False)
    results = [
        EvalResult(
            task_type=pipeline or "other",
            dataset_type=dataset or visible(task, lines=False),
            dataset_name=visible(task, lines=False),
            dataset_split="test",
            metric_type=test["metric"],
            metric_value=test[test["metric"]],
        )
    ]
    measured = test[test["metric"]] is not None and not facts.get("agreement")
    return ModelCardData(
        base_model=base,
        library_name="sentence-transformers" if embeds else "transformers",
        tags=["espalier", "pruned", *filter(None, facts.get("target", "").split(","))],
        pipeline_tag=pipeline,
        datasets=[dataset] if dataset else None,
        license=getattr(old, "license", None),
        language=getattr(old, "language", None),
        model_name=named if measured else None,
        eval_results=results if measured else None,
    )


def _class_of(folder: Path, model: Any) -> str:
    """Return the name of the model's class; of one that is not in memory, by its config."""
    if model is not None:
        return type(model).__name__
    try:
        named = read_json(folder / CONFIG).get("architectures")
    except EspalierError:
        return ""
    return str(named[0]) if isinstance(named, list) and named else ""


def _old_card(source: Any) -> Any:
    """Return the front matter of the card of the model that this one was made from, if it has one."""
    from huggingface_hub import ModelCard

    path = Path(source) / CARD if isinstance(source, (str, Path)) else None
    try:
        return ModelCard.load(path).data if path and path.is_file() else None
    except Exception:  # a card is free text: whatever is wrong with it, this one does not depend on it
        return None


def _base_model(source: Any) -> str | None:
    """Return the model of the hub that this one comes from, by the name or by the records of its folder."""
    if not isinstance(source, (str, Path)):
        source = str(getattr(getattr(source, "config", None), "_name_or_path", "") or "")
    folder = Path(source)
    if not folder.exists():
        return str(source) if HUB_NAME.fullmatch(str(source)) else None
    named = getattr(_old_card(source), "base_model", None)
    for record in (folder / TRAINING_RECORD, folder / PLAN):
        try:
            origin = read_json(record).get("origin") if record.is_file() else None
        except EspalierError:
            origin = None
        named = named or (origin.get("model") if isinstance(origin, dict) else None)
    found = named[0] if isinstance(named, list) and named else named
    return found if isinstance(found, str) and HUB_NAME.fullmatch(found) else None


def _picture(facts: Mapping[str, Any], model: Any) -> list[str]:
    """Return what every layer keeps, as bars."""
    if model is not None:
        units = plan_of(model).units
        layers = [
            {"site": s.name, "kept": s.units, "units": units.get(s.name, s.units)}
            for s in sites(model, "heads", "neurons")
        ]
        layers += [one for one in facts.get("layers", ()) if "removed" in one]
    else:
        layers = list(facts.get("layers", ()))
    if all(one["kept"] == one["units"] for one in layers):
        return _zeros(model) if facts["after"]["sparsity"] > 0.01 and model is not None else []
    return ["## What every layer keeps", layers_table({"layers": layers}).to_markdown()]


def _zeros(model: Any) -> list[str]:
    found = sites(model, "weights")
    left = {s.name: float((s.linear.weight != 0).float().mean()) for s in found if s.units}
    rows = [
        {"matrix": name, "weights that are not zero": f"{100 * share:.1f} % {'█' * round(12 * share)}"}
        for name, share in left.items()
    ]
    return ["## What every matrix keeps", Table(rows).to_markdown()]


def _loading(folder: Path, model: Any) -> str:
    name = repr(visible(folder.name, lines=False))
    kind = _class_of(folder, model)
    top = next((auto for end, (_, auto) in KINDS.items() if kind.endswith(end)), "AutoModel")
    embeds = top == "AutoModel" and (folder / MODULES).is_file()
    lines = [
        f"from transformers import {top}, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({name})",
    ]
    if embeds:
        lines = ["from sentence_transformers import SentenceTransformer", ""]
    own, tokens = (folder / MODELING).exists(), CONFIG_KEY in read_json(folder / CONFIG)
    if own or tokens:
        lines[:0] = ["import espalier  # before the model is loaded"]
    if embeds:
        return "\n".join([*lines, f"model = SentenceTransformer({name})"])
    if not own or tokens:  # only espalier drops tokens
        return "\n".join([*lines, f"model = {top}.from_pretrained({name})"])
    other = f"model = {top}.from_pretrained({name}, trust_remote_code=True)  # without espalier"
    return "\n".join([*lines, f"model = {top}.from_pretrained({name})", other])


def _code(text: str, language: str) -> str:
    """Return a block of code that its text cannot end."""
    text = visible(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text}\n{fence}"
