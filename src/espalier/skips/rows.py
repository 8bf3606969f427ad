"""The examples of a batch that later layers still compute, where others have left.

What is installed inside a layer and reads something of the whole batch, its mask for instance, takes these
rows of it.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from torch import Tensor, nn

ROWS: WeakKeyDictionary[nn.Module, Tensor] = WeakKeyDictionary()  # base model -> rows; without it: all
