"""The All-attention and Transformer-XL language models, as classes of transformers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from .attention import RelativeAttention
from .configuration import AllAttentionConfig, TransformerXLConfig
from .vocabulary import AdaptiveEmbedding, AdaptiveSoftmax

Mems = Sequence[Tensor]  # of each layer, the hidden states it read last, [b, up to mem_length, m]


@dataclass
class RecurrentOutput(BaseModelOutputWithPast):
    """The output of a base model; `mems` are for the segment that follows."""

    mems: tuple[Tensor, ...] | None = None


@dataclass
class RecurrentLMOutput(CausalLMOutputWithPast):
    """The output of a language model; `mems` are for the segment that follows."""

    mems: tuple[Tensor, ...] | None = None


class FeedForward(nn.Module):
    """The feed-forward network of Transformer-XL, with its norm."""

    def __init__(self, config: Any, neurons: int):
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.up = nn.Linear(config.hidden_size, neurons)
        self.down = nn.Linear(neurons, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(self.norm(x))))


class Block(nn.Module):
    """One layer, pre-norm: attention, and a feed-forward network if the model has one."""

    def __init__(self, config: Any, layer_idx: int, slots: int = 0, neurons: int = 0):
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.attention = RelativeAttention(config, layer_idx, slots)
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.feed_forward = FeedForward(config, neurons) if neurons else None

    def forward(
        self, hidden_states: Tensor, memory: Tensor | None, maps: list[Tensor | None], **given: Any
    ) -> Tensor:
        """Return the hidden states after this layer; what it attends to in the text is added to `maps`."""
        memory = None if memory is None else self.norm(memory)
        out, found = self.attention(self.norm(hidden_states), memory=memory, **given)
        maps.append(None if found is None else found[..., : given["attention_mask"].shape[-1]])
        hidden_states = hidden_states + self.dropout(out)
        if self.feed_forward is not None:
            hidden_states = hidden_states + self.dropout(self.feed_forward(hidden_states))
        return hidden_states


class RecurrentPreTrainedModel(PreTrainedModel):
    """What all classes here share: initialisation, and what transformers asks about them."""

    base_model_prefix = "model"
    _no_split_modules = ["Block"]  # noqa: RUF012 - transformers reads a list
    _supports_sdpa = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw embeddings and projections from U(±√(1/d)), other matrices from U(±√(1/(d·layers)))."""
        width = 1 / math.sqrt(self.config.hidden_size)
        if isinstance(module, (AdaptiveEmbedding, AdaptiveSoftmax)):
            for p in module.parameters():
                init.uniform_(p, -width, width) if p.dim() > 1 else init.zeros_(p)
        elif isinstance(module, nn.Embedding):
            init.uniform_(module.weight, -width, width)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            bound = width / math.sqrt(self.config.num_hidden_layers)
            init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                init.zeros_(module.bias)


class RecurrentModel(RecurrentPreTrainedModel):
    """Blocks over a text, one segment after the other."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.embeddings = AdaptiveEmbedding(config)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)  # by distance
        self.dropout = nn.Dropout(config.hidden_dropout)
        self.layers = nn.ModuleList(
            Block(config, i, **config.block_sizes) for i in range(config.num_hidden_layers)
        )
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def set_input_embeddings(self, value: AdaptiveEmbedding) -> None:
        self.embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        mems: Mems | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return hidden states of a segment.

        `mems` of the segment before extend the context; () starts a text. They are returned if they are
        given, and their layers' weights learn from them, unlike from a key-value cache, which is for
        generation. A mask counts the tokens of the cache and of the segment, not those of `mems`.
        """
        hidden = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        hidden = self.dropout(hidden * math.sqrt(self.config.hidden_size))
        use_cache = self.config.use_cache if use_cache is None else use_cache
        if use_cache and past_key_values is None and mems is None and not self.training:
            past_key_values = DynamicCache()
        cached = past_key_values.get_seq_length() if past_key_values is not None else 0
        before = mems[0].shape[1] if mems else 0
        mask, positions = self._context(hidden, before + cached, attention_mask)
        states, kept = [hidden], list[Tensor]()
        maps: list[Tensor | None] = []
        for number, block in enumerate(self.layers):
            memory = mems[number] if mems else None
            if mems is not None:
                seen = hidden if memory is None else torch.cat([memory, hidden], 1)
                kept.append(seen[:, max(0, seen.shape[1] - self.config.mem_length) :].detach())
            given = {"attention_mask": mask, "positions": positions, "past_key_values": past_key_values}
            hidden = block(hidden, memory, maps, **given)
            states.append(hidden)
        found = RecurrentOutput(
            last_hidden_state=self.dropout(hidden),
            past_key_values=past_key_values,
            hidden_states=tuple(states) if self._asked(output_hidden_states, "hidden_states") else None,
            attentions=tuple(maps) if self._asked(output_attentions, "attentions") else None,
            mems=None if mems is None else tuple(kept),
        )
        return found.to_tuple() if return_dict is False else found

    def _context(self, hidden: Tensor, before: int, given: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return where a query may attend, [b or 1, 1, t, s], and the vectors of the distances, [1, s, m]."""
        tokens, device = hidden.shape[1], hidden.device
        keys = before + tokens
        from_end = torch.arange(keys - 1, -1, -1, device=device)  # distances of all keys to the last token
        distance = from_end[None] - from_end[-tokens:, None]  # [t, s]; below zero in the future
        mask = distance >= 0
        if self.config.same_length:
            mask &= distance <= self.config.mem_length
        mask = mask[None, None]
        if given is not None:
            given = F.pad(given.bool(), (keys - given.shape[1], 0), value=True)
            mask = mask & given[:, None, None]
        longest = self.config.max_position_embeddings - 1
        return mask, self.dropout(self.positions(from_end.clamp_max(longest)))[None]

    def _asked(self, given: bool | None, name: str) -> bool:
        return bool(getattr(self.config, f"output_{name}", False) if given is None else given)


class RecurrentForCausalLM(RecurrentPreTrainedModel, GenerationMixin):
    """A base model with the adaptive softmax on top, which shares the embeddings."""

    base_class: type[RecurrentModel]

    def __init__(self, config: Any):
        super().__init__(config)
        self.model = self.base_class(config)
        self.head = AdaptiveSoftmax(config)
        self.post_init()

    def get_output_embeddings(self) -> None:
        return None

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        mems: Mems | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return the logits of the next words, or their log-probabilities if the vocabulary has clusters.

        `labels` are the words of the segment itself, −100 where none counts; the loss is a mean over words.
        They may hold one word more, the one after the segment: then its last word predicts that one.
        A clustered vocabulary is large: while it trains, only the loss is computed and `logits` is None.
        """
        found = self.model(
            input_ids,
            attention_mask=attention_mask,
            mems=mems,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
        )
        hidden, loss, logits = found.last_hidden_state, None, None
        if labels is not None:
            words = labels[:, 1:].flatten()
            counted = words != -100
            losses = self.head.losses(
                hidden[:, : labels.shape[1] - 1].flatten(0, 1)[counted], words[counted], self.model.embeddings
            )
            loss = losses.mean()
        if loss is None or not self.training or self.head.clusters is None:
            logits = self.head(hidden[:, -logits_to_keep:], self.model.embeddings)
        out = RecurrentLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=found.past_key_values,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
            mems=found.mems,
        )
        return out.to_tuple() if return_dict is False else out


class AllAttentionModel(RecurrentModel):
    """All-attention: persistent vectors in place of a feed-forward network."""

    config_class = AllAttentionConfig


class AllAttentionForCausalLM(RecurrentForCausalLM):
    """All-attention with its output layer."""

    config_class, base_class = AllAttentionConfig, AllAttentionModel


class TransformerXLModel(RecurrentModel):
    """Transformer-XL with learned positions, pre-norm."""

    config_class = TransformerXLConfig


class TransformerXLForCausalLM(RecurrentForCausalLM):
    """Transformer-XL with its output layer."""

    config_class, base_class = TransformerXLConfig, TransformerXLModel


MODELS: tuple[Any, ...] = (
    (AllAttentionModel, AllAttentionForCausalLM),
    (TransformerXLModel, TransformerXLForCausalLM),
)
