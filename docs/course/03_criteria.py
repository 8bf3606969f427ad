# %% [markdown]
# # 3. Which weights matter?
#
# Removing weight w changes the loss by about −g·w + ½·h·w². *Magnitude* takes w² alone. *SNIP* takes
# the first term, |g·w|; at the end of a training g is nearly zero and the second term is left: *OBD*,
# with h from squared gradients (Fisher).

# %%
import torch
from matplotlib import pyplot as plt

from digits import accuracy, batches, new, train, trained
from espalier import criteria, remove_lowest, sites, zero

model = trained()
print(f"dense: {accuracy(model):.1%}")

# %%
fractions, curves = [0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9], {}
for name in ("random", "magnitude", "snip", "obd"):
    scores = criteria.load(name)(model, sites(model, "weights"), batches())
    curves[name] = []
    for fraction in fractions:
        pruned = trained()
        zero(pruned, remove_lowest(scores, fraction))
        curves[name].append(accuracy(pruned))
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for name, line in curves.items():
    axes.plot(fractions, line, marker="o", label=name)
axes.set(xlabel="weights removed", ylabel="test accuracy")
axes.legend()
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Show on a quadratic loss ½·h·(w − c)² that −g·w + ½·h·w² is exact.
# 2. Magnitude changes if one layer is multiplied by 10 and the next divided by 10, though the network
#    computes the same. What does SNIP do?
# 3. Score an *untrained* network by SNIP, remove 80 %, train it. Compare with a random mask.

# %% [markdown]
# ## Solutions

# %%
w, c, h = torch.tensor([1.5, -0.4]), torch.tensor([1.0, 0.3]), torch.tensor([2.0, 0.5])
loss = lambda w: (0.5 * h * (w - c) ** 2).sum()  # noqa: E731
g = h * (w - c)
without_first = torch.tensor([0.0, -0.4])
assert torch.isclose(loss(without_first) - loss(w), (-g * w + 0.5 * h * w**2)[0])

# %%
# g·w does not change: if w is ten times larger, its gradient is ten times smaller.
x = torch.randn(64, 8)
first, second = torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 1, bias=False)


def products():
    return [
        g * w for g, w in zip(torch.autograd.grad(second(first(x).relu()).square().mean(), weights), weights)
    ]


weights = [first.weight, second.weight]
before = products()
with torch.no_grad():
    first.weight *= 10
    second.weight /= 10
assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-6) for a, b in zip(before, products()))

# %%
from espalier.training import held

for name in ("snip", "random"):
    model = new(1)
    places = sites(model, "weights")
    mask = remove_lowest(criteria.load(name)(model, places, batches()), 0.8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    with held(places, mask, optimizer):
        train(model, steps=80, optimizer=optimizer)
    print(f"{name}: {accuracy(model):.1%}")
