"""The hooks by which transformers builds, loads and writes cut models.

`register` adds a quantizer, which transformers calls before it loads weights: it shapes the model and
decodes sparse weights. `attach` shapes models that are built from the config of a cut one, and writes the
code that reads such a config wherever one is written.
remote_code.py appends this file to copies of pruning/grafts.py and skeleton.py for folders of cut models, but
not the relative imports below: it must need only torch, transformers and these names.
"""

import json
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from inspect import isclass
from pathlib import Path
from typing import Any

from torch import empty, nn

from ..io.paths import CONFIG, MODELING, SPARSE_WEIGHTS
from ..pruning.skeleton import METHOD, empty_record, is_ours, put_on

Code = Callable[[dict[str, str]], str]

# In place of the name of the weight file, which transformers checks first and shows if it is wrong. Otherwise
# it would build the unpruned model and, if sizes may differ, leave random weights wherever there was a cut.
MARK = (
    "none, because espalier cut this model: import espalier before loading it, or load it with "
    "trust_remote_code=True"
)


def register() -> None:
    """Register the loader with transformers, once."""
    from transformers.quantizers import auto
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    if METHOD in auto.AUTO_QUANTIZER_MAPPING:
        return

    @auto.register_quantization_config(METHOD)
    class EspalierConfig(QuantizationConfigMixin):
        def __init__(self, quant_method: str = METHOD, sparse: bool = False, **record: Any) -> None:
            self.quant_method = quant_method
            self.version, self.plan, self.skeleton = map(record.get, ("version", "plan", "skeleton"))
            if sparse:
                self.sparse = True

    @auto.register_quantizer(METHOD)
    class EspalierLoader(HfQuantizer):
        restorer: Any = None

        def update_attn_implementation(self, config: Any) -> Any:
            # The last call before transformers looks for the weights: a sparse folder has another file.
            if getattr(self.quantization_config, "sparse", False):
                config.transformers_weights = SPARSE_WEIGHTS
            elif not str(getattr(config, "transformers_weights", "")).endswith((".safetensors", ".json")):
                config.__dict__.pop("transformers_weights", None)
            return config

        def _process_model_before_weight_loading(
            self, model: Any, checkpoint_files: Any = None, **kwargs: Any
        ) -> None:
            folder = str(model.config.name_or_path)
            for file in map(str, checkpoint_files or ()):
                if file.startswith(folder) and ".." in Path(file.removeprefix(folder)).parts:
                    raise ValueError(f"the index of the weights lists a file outside of the folder: {file}")
            put_on(model, vars(self.quantization_config))
            if getattr(self.quantization_config, "sparse", False):
                self.restorer = _make_restorer(checkpoint_files)
            self.sizes = {name: p.shape for name, p in model.named_parameters()}

        def update_weight_conversions(
            self, *given: Any, **named: Any
        ) -> Any:  # other versions give other ones
            first = self.restorer.conversions() if self.restorer else ()
            return [*first, *super().update_weight_conversions(*given, **named)]

        def get_new_dtype(self, converter: Any, param: Any, dtype: Any) -> Any:
            if self.restorer and self.restorer.is_part(converter, dtype):
                return None
            return super().get_new_dtype(converter, param, dtype)

        def compare_sizes(self, model: Any, info: Any) -> None:
            # transformers does not, when a quantizer is present. What it does about a difference follows.
            cut = tuple(self.quantization_config.skeleton["shapes"])
            for name, parameter in list(model.named_parameters()):
                expected = self.sizes.get(name, parameter.shape)
                if parameter.shape != expected:
                    if name.endswith(cut):  # only a head may be new
                        sizes = f"{tuple(parameter.shape)} in the file and {tuple(expected)} in the model"
                        raise ValueError(f"{name}, which was cut, has size {sizes}")
                    info.mismatched_keys.add((name, parameter.shape, expected))
                    owner, _, last = name.rpartition(".")
                    new = empty(expected, dtype=parameter.dtype, device="meta")
                    setattr(model.get_submodule(owner), last, nn.Parameter(new))

        def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
            if self.restorer:
                self.restorer.finish(model)
            # The model is an ordinary, trainable one of another shape: remove the marks of a quantized model.
            for name in ("hf_quantizer", "quantization_method", "is_quantized"):
                if name in model.__dict__:
                    delattr(model, name)
            for module in model.modules():
                own = getattr(getattr(module, "config", None), "__dict__", {})
                for name in ("_is_quantized", "transformers_weights"):
                    own.pop(name, None)
            record = self.quantization_config.to_dict()
            record.pop("sparse", None)
            model.config.quantization_config = record
            if not (record["plan"] or {}).get("keep"):  # stored sparse and never cut, or only its parts were
                del model.config.quantization_config
            if __name__.startswith(METHOD):  # espalier is installed: the code in the folder is not needed
                model.config.__dict__.pop("auto_map", None)
            return model

        def is_serializable(self) -> bool:
            return True

        @property
        def is_trainable(self) -> bool:
            return True


def attach(
    code: Code,
    check: Callable[[Any], None] = lambda model: None,
    more: dict[str, Callable[[Any], None]] | None = None,
) -> None:
    """Wrap what builds, loads and writes models in transformers, once.

    `code` returns the text of the modeling file for these classes; `check` raises for a model that could not
    be loaded again; `more` is what to do with a model that was just built, by an entry of its config.
    """
    from transformers.configuration_utils import PreTrainedConfig
    from transformers.modeling_utils import PreTrainedModel

    build, finish = PreTrainedModel.post_init, PreTrainedModel._finalize_model_loading
    save, write = PreTrainedModel.save_pretrained, PreTrainedConfig.save_pretrained
    known = getattr(build, METHOD, None)
    if known is not None:
        if isinstance(known, dict):  # the file of a folder was here first
            known.update(more or {})
        return
    known = dict(more or {})

    @wraps(build)
    def post_init(self: Any) -> None:
        build(self)
        # A loader passes an object, not a dictionary, and shapes the model itself.
        record = getattr(self.config, "quantization_config", None)
        if is_ours(record):
            put_on(self, record)
        for entry, restore in known.items():
            if getattr(self.config, entry, None) is not None:
                restore(self)

    @wraps(finish)
    def finalize(model: Any, load_config: Any, loading_info: Any) -> Any:
        if hasattr(load_config.hf_quantizer, "compare_sizes"):
            load_config.hf_quantizer.compare_sizes(model, loading_info)
        return finish(model, load_config, loading_info)

    @wraps(save)
    def save_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        check(self)
        return save(self, *args, **kwargs)

    @wraps(write)
    def save_config(self: Any, save_directory: Any, *args: Any, **kwargs: Any) -> Any:
        written = write(self, save_directory, *args, **kwargs)
        write_code(Path(save_directory), code)
        return written

    setattr(post_init, METHOD, known)
    model, config = PreTrainedModel, PreTrainedConfig
    model.post_init, model._finalize_model_loading = post_init, staticmethod(finalize)  # type: ignore
    model.save_pretrained, config.save_pretrained = save_model, save_config  # type: ignore


def write_code(folder: Path, code: Code) -> None:
    """If a folder's config records a cut, mark it, and write the code that loads it without espalier."""
    path = folder / CONFIG
    config = json.loads(path.read_text(encoding="utf-8"))
    marked = list(_configs_with_record(config))
    if not marked:
        return
    if not is_ours(config.get("quantization_config")):  # only a part of the model was cut
        if config.get("quantization_config") is not None:
            raise ValueError("a part of the model was cut and the model is quantized: no loader does both")
        config["quantization_config"] = empty_record()
        marked.append(config)
    for one in marked:
        one["transformers_weights"] = MARK
    classes = _auto_classes(config)
    own = f"{Path(MODELING).stem}."
    if classes and all(str(value).startswith(own) for value in config.get("auto_map", {}).values()):
        config["auto_map"] = {auto: own + name for auto, name in classes.items()}
        (folder / MODELING).write_text(code(classes), encoding="utf-8")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _configs_with_record(config: dict[str, Any]) -> Any:
    """Yield the dictionaries in a config file, also of parts of a model, that record a cut."""
    if is_ours(config.get("quantization_config")):
        yield config
    for name, value in config.items():
        if isinstance(value, dict) and name != "quantization_config":
            yield from _configs_with_record(value)


def _auto_classes(config: dict[str, Any]) -> dict[str, str]:
    """Return {"AutoModelForCausalLM": "GPT2LMHeadModel", …} for the type of a model."""
    import transformers
    from transformers.models.auto import modeling_auto

    found = {}
    for name, value in vars(modeling_auto).items():
        if not (name.startswith("AutoModel") and isclass(value) and hasattr(value, "_model_mapping")):
            continue
        names = value._model_mapping._model_mapping.get(config.get("model_type"))
        names = names if isinstance(names, (tuple, list)) else [names]
        own = [n for n in names if n in (config.get("architectures") or ())] or [n for n in names if n]
        if own and hasattr(transformers, name) and hasattr(transformers, own[0]):
            found[name] = own[0]
    return found


def _make_restorer(files: Any) -> Any:
    """Return the decoder of a sparse folder, which is part of espalier and not of this file."""
    try:
        return import_module("espalier.storage.sparse_folder").Restorer(files)
    except ImportError:
        raise ValueError(
            f"the weights in {SPARSE_WEIGHTS} are stored sparse: install espalier to load them, or decode "
            "the folder where espalier is installed"
        ) from None
