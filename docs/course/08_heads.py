# %% [markdown]
# # 8. Which heads can go?
#
# A head's importance is the gradient of the loss with respect to a gate on it, ξ = 1: |∂L/∂ξ| (Michel
# et al.). Scoring once and removing from the bottom is cheap; but heads stand in for each other, so
# after every removal the others are worth something else. Greedy pruning scores again. In this small
# model the two hardly differ; in a language model scoring once can fall below random removal
# (docs/findings.md).

# %%
import torch
from matplotlib import pyplot as plt

from digits import accuracy, batches, new, train
from espalier import Mask, criteria, masked, remove_lowest, sites

model = train(new(num_hidden_layers=4, num_attention_heads=8))
places = sites(model, "heads")
taylor = criteria.load("taylor")


def at(mask):
    with masked(places, mask):
        return accuracy(model)


once = taylor(model, places, batches())
removed, curves = list(range(0, 32, 2)), {"scored once": [], "scored again": [], "random": []}
mask = Mask.ones(places)
for count in removed:
    curves["scored once"].append(at(remove_lowest(once, count / 32)))
    curves["random"].append(at(remove_lowest(criteria.load("random")(model, places), count / 32)))
    with masked(places, mask):
        scores = taylor(model, places, batches()) if count else once
    mask = remove_lowest(scores, count / 32, mask=mask)
    curves["scored again"].append(at(mask))
figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for label, line in curves.items():
    axes[0].plot(removed, line, marker=".", label=label)
axes[0].set(xlabel="heads removed of 32", ylabel="test accuracy")
axes[0].legend()
axes[1].imshow(torch.stack(list(once.values())))
axes[1].set(xlabel="head", ylabel="layer", title="score of the whole model")
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Check a score by finite differences: close one gate a little and look at the loss.
# 2. Remove each head alone. Does any removal *improve* the loss?
# 3. Why must the mean be taken over absolute values of single examples, and not the other way round?

# %% [markdown]
# ## Solutions

# %%
from espalier import gated

batch = batches(64)[0]
signed = criteria.load("taylor")(model, places, batches(64), signed=True)


def loss(gates):
    with gated(places, gates), torch.no_grad():
        return model(**batch).loss.item()


ones = {site.name: torch.ones(site.units) for site in places}
first = places[0].name
closed = ones | {first: ones[first] - 1e-2 * (torch.arange(8) == 0)}
print(
    f"finite difference {(loss(closed) - loss(ones)) / 1e-2:.5f}, signed score {signed[first][0].item():.5f}"
)

# %%
alone = [loss(ones | {s.name: (torch.arange(8) != h).float()}) for s in places for h in range(8)]
print(f"{sum(x < loss(ones) for x in alone)} of 32 removals lower the loss on these digits")

# %%
# A head that helps half of the examples and hurts the others has a mean gradient of nothing, and matters.
each = torch.tensor([+1.0, -1.0])
assert each.mean().abs() == 0 < each.abs().mean()
