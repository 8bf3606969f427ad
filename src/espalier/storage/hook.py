"""The hook by which `from_pretrained` of transformers loads folders of espalier.

transformers calls a quantizer before it loads weights; this one shapes the model and decodes sparse weights.
`write_modeling` in save.py appends this file to a copy of pruning/skeleton.py in folders of cut models, but
not the relative imports below: it must need only torch, transformers and these names.
"""

from importlib import import_module
from typing import Any

from ..io.paths import SPARSE_WEIGHTS
from ..pruning.skeleton import METHOD, put_on


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
            return config

        def _process_model_before_weight_loading(
            self, model: Any, checkpoint_files: Any = None, **kwargs: Any
        ) -> None:
            put_on(model, vars(self.quantization_config))
            if getattr(self.quantization_config, "sparse", False):
                self.restorer = _make_restorer(checkpoint_files)
            self.sizes = {name: tuple(p.shape) for name, p in model.named_parameters()}

        def update_weight_conversions(self, weight_conversions: Any, model: Any) -> Any:
            first = self.restorer.conversions() if self.restorer else ()
            return [*first, *super().update_weight_conversions(weight_conversions, model)]

        def get_new_dtype(self, converter: Any, param: Any, dtype: Any) -> Any:
            if self.restorer and self.restorer.is_part(converter, dtype):
                return None
            return super().get_new_dtype(converter, param, dtype)

        def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
            if self.restorer:
                self.restorer.finish(model)
                model.config.__dict__.pop("transformers_weights", None)
            # transformers does not compare sizes when a quantizer is present.
            for name, p in model.named_parameters():
                if tuple(p.shape) != self.sizes.get(name, tuple(p.shape)):
                    raise ValueError(
                        f"{name} has size {tuple(p.shape)} in the file and {self.sizes[name]} in the model. "
                        "For another head on top, load the model first and then replace its head"
                    )
            # The model is an ordinary, trainable one of another shape: remove the marks of a quantized model.
            for name in ("hf_quantizer", "quantization_method", "is_quantized"):
                if name in model.__dict__:
                    delattr(model, name)
            for module in model.modules():
                getattr(getattr(module, "config", None), "__dict__", {}).pop("_is_quantized", None)
            record = self.quantization_config.to_dict()
            record.pop("sparse", None)
            model.config.quantization_config = record
            if self.restorer and not record["skeleton"]["shapes"]:  # stored sparse, never cut
                del model.config.quantization_config
            if __name__.startswith(METHOD):  # espalier is installed: the code in the folder is not needed
                model.config.__dict__.pop("auto_map", None)
            return model

        def is_serializable(self) -> bool:
            return True

        @property
        def is_trainable(self) -> bool:
            return True


def _make_restorer(files: Any) -> Any:
    """Return the decoder of a sparse folder, which is part of espalier and not of this file."""
    try:
        return import_module("espalier.storage.sparse_folder").Restorer(files)
    except ImportError:
        raise ValueError(
            f"the weights in {SPARSE_WEIGHTS} are stored sparse: install espalier to load them, or decode "
            "the folder where espalier is installed"
        ) from None
