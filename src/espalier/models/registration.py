"""Registration with the auto classes of transformers, done when it imports them."""


def register_configs() -> None:
    """Make the model types known to AutoConfig, once."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from .configuration import CONFIGS

    for config in CONFIGS:
        CONFIG_MAPPING.register(config.model_type, config, exist_ok=True)


def register_models() -> None:
    """Make the model classes known to AutoModel and AutoModelForCausalLM, once."""
    from transformers.models.auto.modeling_auto import AutoModel, AutoModelForCausalLM

    from . import recurrent

    register_configs()
    for base, causal in recurrent.MODELS:
        AutoModel.register(base.config_class, base, exist_ok=True)
        AutoModelForCausalLM.register(causal.config_class, causal, exist_ok=True)
