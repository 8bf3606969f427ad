# %% [markdown]
# # 2. Where are the zeros?
#
# Zeros save nothing until they are left out, and then their places must be stored: as one bit for
# each weight (bitmap), as distances (run length, Rice codes), or as indices (COO, CSR). Which is
# smallest depends on how many there are.

# %%
import torch
from matplotlib import pyplot as plt

from espalier.storage.encodings import best_spec, bound, decode, encode, size

torch.manual_seed(0)
values, order = torch.randn(256, 256), torch.rand(256, 256)


def with_zeros(fraction):
    return values.where(
        order >= fraction, 0
    )  # a product would make −0.0 of negative weights, which is a value


weight = with_zeros(0.9)
print(
    {
        name: size(best_spec(weight, [name]))
        for name in ("dense", "bitmap", "run_length", "rice", "csr", "coo")
    }
)

# %% [markdown]
# Decoding gives the same bits back.

# %%
assert torch.equal(decode(encode(weight, "csr")), weight)

# %%
fractions = [i / 50 for i in range(50)]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for name in ("dense", "bitmap", "run_length", "rice", "csr", "coo"):
    axes.plot(
        fractions,
        [size(best_spec(with_zeros(f), [name])) / bound(with_zeros(f)) for f in fractions],
        label=name,
    )
axes.set(xlabel="zeros", ylabel="bytes / information bound", ylim=(0.95, 2.5))
axes.legend()
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. From how many zeros on is a bitmap of 32-bit weights smaller than the dense matrix? Derive it,
#    then find it.
# 2. CSR of a matrix with one row: what does it become?
# 3. 2:4 sparsity takes one bit per weight for its indices. Why is that as much as a bitmap, and what
#    is it good for?

# %% [markdown]
# ## Solutions

# %%
# n bits for the map, 32 for every value: n + 32·n·(1 − f) < 32·n, so f > 1/32
assert (
    size(best_spec(with_zeros(0.02), ["bitmap"]))
    > values.nbytes
    > size(best_spec(with_zeros(0.05), ["bitmap"]))
)

# %%
row = with_zeros(0.9)[:1]
print({name: size(best_spec(row, [name])) for name in ("csr", "coo")})  # a list of columns and two pointers

# %%
# Two of four places are stored as two indices of two bits for four weights: one bit each, like the bitmap.
# Hardware can read it: it knows without looking that two products of four are left.
pairs = values.unflatten(1, (64, 4))
kept = pairs.where(pairs.abs() >= pairs.abs().topk(2, -1).values[..., -1:], 0)
assert size(best_spec(kept.flatten(1), ["nm"])) == size(best_spec(kept.flatten(1), ["bitmap"]))
