"""Adaptive input and softmax: rare words have narrower embeddings, and both share them.

The vocabulary is sorted by frequency and divided into clusters. Word i of cluster c is P_c·E_c[i], and
E_c is narrower from cluster to cluster. A prediction chooses among the first cluster's words and the
other clusters, then among the words of a cluster (Grave et al. 2017, https://arxiv.org/abs/1609.04309; as
input: Baevski and Auli 2019, https://arxiv.org/abs/1809.10853).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class AdaptiveEmbedding(nn.Module):
    """Embeddings of a clustered vocabulary; with one cluster, an ordinary table."""

    def __init__(self, config: Any):
        super().__init__()
        self.num_embeddings, self.embedding_dim = config.vocab_size, config.hidden_size
        self.ranges = list(pairwise([0, *config.cutoffs, config.vocab_size]))
        widths = [config.hidden_size // config.div_value**i for i in range(len(self.ranges))]
        self.tables: Any = nn.ModuleList(
            nn.Embedding(b - a, width) for (a, b), width in zip(self.ranges, widths)
        )
        clustered = len(widths) > 1
        self.projections: Any = nn.ModuleList(
            nn.Linear(width, config.hidden_size, bias=False) for width in widths if clustered
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Return the embeddings of words, [..., m]."""
        if not len(self.projections):
            return self.tables[0](ids)
        flat, found, places = ids.flatten(), [], []
        for (first, end), table, project in zip(self.ranges, self.tables, self.projections):
            here = ((flat >= first) & (flat < end)).nonzero()[:, 0]
            found.append(project(table(flat[here] - first)))
            places.append(here)
        return torch.cat(found)[torch.cat(places).argsort()].view(*ids.shape, -1)


class AdaptiveSoftmax(nn.Module):
    """The output layer of a clustered vocabulary: tables and narrower projections are those of the input."""

    def __init__(self, config: Any):
        super().__init__()
        ends = [0, *config.cutoffs, config.vocab_size]
        self.biases = nn.ParameterList(torch.zeros(b - a) for a, b in pairwise(ends))
        rare = len(ends) - 2
        self.projection = nn.Linear(config.hidden_size, config.hidden_size, bias=False) if rare else None
        self.clusters = nn.Linear(config.hidden_size, rare) if rare else None

    def forward(self, hidden: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Return logits, [..., vocabulary]; of several clusters, log-probabilities."""
        if self.clusters is None:
            return F.linear(hidden, embedding.tables[0].weight, self.biases[0])
        head, parts = self._head(hidden, embedding), []
        for cluster, size in enumerate(map(len, self.biases)):
            if cluster:
                tail = self._tail(hidden, embedding, cluster).log_softmax(-1)
                parts.append(tail + head[..., len(self.biases[0]) + cluster - 1, None])
            else:
                parts.append(head[..., :size])
        return torch.cat(parts, -1)

    def losses(self, hidden: Tensor, words: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Return −ln p of each word, [n], given hidden states [n, m], without the words of other clusters."""
        if self.clusters is None:
            return F.cross_entropy(self(hidden, embedding), words, reduction="none")
        head, out = self._head(hidden, embedding), hidden.new_zeros(len(words))
        for cluster, here, inside in self._by_cluster(words, embedding):
            if not cluster:
                found = head[here].gather(1, inside[:, None])
            else:
                tail = self._tail(hidden[here], embedding, cluster).log_softmax(-1)
                chosen = head[here, len(self.biases[0]) + cluster - 1, None]
                found = tail.gather(1, inside[:, None]) + chosen
            out = out.index_add(0, here, -found[:, 0].to(out.dtype))
        return out

    def _by_cluster(
        self, words: Tensor, embedding: AdaptiveEmbedding
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield each cluster, which words are in it, and their numbers there."""
        for cluster, (first, end) in enumerate(embedding.ranges):
            here = ((words >= first) & (words < end)).nonzero()[:, 0]
            yield cluster, here, words[here] - first

    def _head(self, hidden: Tensor, embedding: AdaptiveEmbedding) -> Tensor:
        """Return log-probabilities of the first cluster's words and of the other clusters."""
        assert self.projection is not None
        assert self.clusters is not None
        words = F.linear(self.projection(hidden), embedding.tables[0].weight, self.biases[0])
        return torch.cat([words, self.clusters(hidden)], -1).log_softmax(-1)

    def _tail(self, hidden: Tensor, embedding: AdaptiveEmbedding, cluster: int) -> Tensor:
        narrow = hidden @ embedding.projections[cluster].weight
        return F.linear(narrow, embedding.tables[cluster].weight, self.biases[cluster])
