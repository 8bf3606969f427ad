# %% [markdown]
# # 4. Weights, groups, neurons, heads
#
# The finer the unit, the more of them can go; the coarser, the more is saved by plain hardware.
# Single weights become zeros in a matrix of the same shape. Neurons and heads are cut out: every
# matrix that reads or writes them shrinks.

# %%
import torch
from matplotlib import pyplot as plt

from digits import accuracy, batches, data, trained
from espalier import cost, criteria, cut, masked, remove_lowest, sites, zero

fractions, curves = [0, 0.25, 0.5, 0.625, 0.75], {}
for label, target, scope in (
    ("weights", "weights", "global"),
    ("weights, rows alike", "weights", "row"),
    ("neurons", "neurons", "global"),
    ("heads", "heads", "global"),
):
    model = trained()
    criterion = criteria.load("magnitude" if target == "weights" else "taylor")
    scores = criterion(model, sites(model, target), batches())
    curves[label] = []
    for fraction in fractions:
        pruned, mask = trained(), remove_lowest(scores, fraction, scope=scope)
        zero(pruned, mask) if target == "weights" else cut(pruned, mask, report=False)
        curves[label].append(accuracy(pruned))
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for label, line in curves.items():
    axes.plot(fractions, line, marker="o", label=label)
axes.set(xlabel="fraction of the units removed", ylabel="test accuracy")
axes.legend()
plt.show()

# %% [markdown]
# Removing a unit is exact: the model with gates at zero and the cut one give the same numbers.

# %%
model = trained()
images = data()[2][:8]
mask = remove_lowest(criteria.load("taylor")(model, sites(model, "heads"), batches()), 0.5)
with masked(sites(model, "heads"), mask), torch.no_grad():
    gated = model(images).logits
dense = cost(model, tokens=17)
cut(model, mask, report=False)
with torch.no_grad():
    assert torch.allclose(model(images).logits, gated, atol=1e-5)
print(dense.to(cost(model, tokens=17)))

# %% [markdown]
# ## Exercises
#
# 1. Keep 2 of every 4 weights (`scope="2:4"`) and compare with half of all weights, chosen freely.
# 2. How many parameters does one neuron hold? Predict what cutting half of them removes, then count.
# 3. Cut all heads of layer 0. Does the model still read digits?

# %% [markdown]
# ## Solutions

# %%
model = trained()
scores = criteria.load("magnitude")(model, sites(model, "weights"))
for scope, fraction in (("2:4", None), ("global", 0.5)):
    pruned = trained()
    zero(pruned, remove_lowest(scores, fraction, scope=scope))
    print(f"{scope}: {accuracy(pruned):.1%}")

# %%
model = trained()
places = sites(model, "neurons")
predicted = sum(site.units // 2 * site.parameters_per_unit() for site in places)
before = sum(p.numel() for p in model.parameters())
cut(model, remove_lowest(criteria.load("magnitude")(model, places), 0.5, scope="layer"), report=False)
assert before - sum(p.numel() for p in model.parameters()) == predicted
assert places[0].parameters_per_unit() == 32 + 1 + 32  # what it reads, its bias, what it writes

# %%
from espalier import Mask

model = trained()
cut(model, Mask.without(sites(model, "heads"), {0: [0, 1, 2, 3]}), report=False)
print(f"without attention in layer 0: {accuracy(model):.1%}")
