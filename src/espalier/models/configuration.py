"""The configs of All-attention and Transformer-XL. The default sizes are those published for WikiText-103."""

from typing import Any

from transformers import PreTrainedConfig

from ..core.errors import InvalidValueError


class RecurrentConfig(PreTrainedConfig):
    """What both models have in common: relative attention, memory of earlier text, an adaptive vocabulary.

    mem_length   tokens of earlier text that a segment attends to, if it is given them
    same_length  whether every token attends to itself and exactly the `mem_length` tokens before it;
                 otherwise to all that there are
    cutoffs      where the next cluster of rarer words begins; none: one cluster
    div_value    by how much the embeddings of a cluster are narrower than those of the one before
    max_position_embeddings   distances with a learned vector of their own; longer ones share the last
    """

    keys_to_ignore_at_inference = ["past_key_values", "mems"]  # noqa: RUF012 - transformers reads a list

    vocab_size: int = 267735
    hidden_size: int = 512
    num_hidden_layers: int = 16
    num_attention_heads: int = 8
    max_position_embeddings: int = 512
    mem_length: int = 192
    same_length: bool = True
    cutoffs: list[int] | tuple[int, ...] = (20000, 40000, 200000)
    div_value: int = 4
    attention_dropout: float = 0.2
    hidden_dropout: float = 0.1
    layer_norm_eps: float = 1e-5
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = True

    def __post_init__(self, **more: Any) -> None:
        super().__post_init__(**more)
        self.cutoffs = list(self.cutoffs)
        ends = [0, *self.cutoffs, self.vocab_size]
        for name, value, valid, wanted in (
            ("hidden_size", self.hidden_size, self.hidden_size % self.num_attention_heads == 0, "a multiple"),
            ("cutoffs", self.cutoffs, ends == sorted(set(ends)), "rising numbers below `vocab_size`"),
            ("mem_length", self.mem_length, self.mem_length >= 0, "0 or more"),
            ("div_value", self.div_value, self.hidden_size >= self.div_value ** len(self.cutoffs), "less"),
        ):
            if not valid:
                wanted = f"{wanted} of `num_attention_heads`" if wanted == "a multiple" else wanted
                raise InvalidValueError(f"`{name}` is {value}; it must be {wanted}", name)
        if self.same_length and not self.mem_length:
            raise InvalidValueError(
                "with `mem_length` 0 and `same_length` a token attends to nothing but itself: set "
                "`same_length` to False, or `mem_length` to the context of a token",
                "mem_length",
            )

    @property
    def block_sizes(self) -> dict[str, int]:
        """What a block has besides its heads: slots or neurons, by their number."""
        return {}


class AllAttentionConfig(RecurrentConfig):
    """All-attention (Sukhbaatar et al. 2019, https://arxiv.org/abs/1907.01470).

    num_slots   persistent key and value vectors of every head, in place of a feed-forward network
    """

    model_type = "all_attention"
    num_slots: int = 2048

    @property
    def block_sizes(self) -> dict[str, int]:
        return {"slots": self.num_slots}


class TransformerXLConfig(RecurrentConfig):
    """Transformer-XL (Dai et al. 2019, https://arxiv.org/abs/1901.02860), pre-norm, learned positions."""

    model_type = "transformer_xl"
    intermediate_size: int = 2048

    @property
    def block_sizes(self) -> dict[str, int]:
        return {"neurons": self.intermediate_size}


CONFIGS: tuple[Any, ...] = (AllAttentionConfig, TransformerXLConfig)
