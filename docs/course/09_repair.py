# %% [markdown]
# # 9. Repair in closed form
#
# When units are cut, those that are left can take over a part of their work. Layer by layer from the
# bottom, the columns that are kept are fitted by least squares, so that the stream after the layer is
# as close as possible to the dense model's. Nothing is trained: two matrices are accumulated and one
# system is solved.

# %%
import torch
from matplotlib import pyplot as plt

import espalier
from digits import accuracy, batches, trained
from espalier import criteria, cut, remove_lowest, sites

dense = trained()
scores = criteria.load("taylor")(dense, sites(dense, "neurons"), batches())
fractions, curves = [0, 0.25, 0.5, 0.75, 0.875], {"cut": [], "repaired": []}
for fraction in fractions:
    small = trained()
    cut(small, remove_lowest(scores, fraction), report=False)
    curves["cut"].append(accuracy(small))
    if fraction:
        espalier.repair(small, dense, batches())
    curves["repaired"].append(accuracy(small))
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for label, line in curves.items():
    axes.plot(fractions, line, marker="o", label=label)
axes.set(xlabel="neurons removed", ylabel="test accuracy")
axes.legend()
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Two neurons always give the same value. One is cut: what does least squares do to the other?
# 2. Why is a ridge needed if there are fewer tokens than columns?
# 3. Repair after a random choice of neurons. Is a good choice still worth something?

# %% [markdown]
# ## Solutions

# %%
x = torch.randn(100, 1)
acts, weights = torch.cat([x, x], 1), torch.tensor([[0.3], [0.5]])
fitted = torch.linalg.lstsq(acts[:, :1], acts @ weights).solution
assert torch.allclose(fitted, torch.tensor([[0.8]]), atol=1e-5)  # it takes the other's weight as well

# %%
few = torch.randn(3, 5)
assert torch.linalg.matrix_rank(few.T @ few) == 3  # singular: infinitely many weights fit
torch.linalg.cholesky(few.T @ few + 0.1 * torch.eye(5))  # with a ridge there is one, the smallest

# %%
for name in ("random", "taylor"):
    small = trained()
    cut(
        small,
        remove_lowest(criteria.load(name)(dense, sites(dense, "neurons"), batches()), 0.75),
        report=False,
    )
    espalier.repair(small, dense, batches())
    print(f"{name}, repaired: {accuracy(small):.1%}")
