"""Types of transformers, for annotations: importing them here costs nothing at run time."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig as PreTrainedConfig
    from transformers import PreTrainedModel as PreTrainedModel
    from transformers import PreTrainedTokenizerBase as PreTrainedTokenizerBase
else:
    PreTrainedConfig = PreTrainedModel = PreTrainedTokenizerBase = Any
