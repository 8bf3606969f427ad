# %% [markdown]
# # 6. One shot, step by step, and lottery tickets
#
# Pruning a little and training, again and again, loses less than pruning everything at once. A
# *lottery ticket* goes further: the mask that was found is trained again from the first weights. If
# it does better than a random mask of the same layer-wise sizes, the mask itself was worth something.

# %%
import copy

import torch
from matplotlib import pyplot as plt

from digits import accuracy, new, train
from espalier import Mask, criteria, remove_lowest, sites
from espalier.selection.schedules import Ramp
from espalier.training import held

figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
for name in ("one-shot", "linear", "cubic", "geometric"):
    ramp = Ramp(0.9, 100, name)
    axes[0].plot(range(101), [ramp(step) for step in range(101)], label=name)
axes[0].set(xlabel="step", ylabel="fraction removed")
axes[0].legend()

# %%
first = new(0)
start = copy.deepcopy(first.state_dict())


def trained_under(mask, weights, seed=0):
    model = new(0)
    model.load_state_dict(weights)
    places = sites(model, "weights")
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    with held(places, mask, optimizer):
        train(model, steps=100, optimizer=optimizer, seed=seed)
    return model


mask, kept, ticket, control = Mask.ones(sites(first, "weights")), [], [], []
for _ in range(4):
    model = trained_under(mask, start)
    kept.append(mask.kept)
    ticket.append(accuracy(model))
    shuffled = {n: m.flatten()[torch.randperm(m.numel())].view(m.shape) for n, m in mask.items()}
    control.append(accuracy(trained_under(Mask(shuffled), start)))
    scores = criteria.load("magnitude")(model, sites(model, "weights"))
    mask = remove_lowest(scores, 1 - mask.kept / 2.5, mask=mask)
axes[1].plot(kept, ticket, marker="o", label="ticket")
axes[1].plot(kept, control, marker="o", label="random, same layers")
axes[1].set(xlabel="weights kept", ylabel="test accuracy", xscale="log")
axes[1].invert_xaxis()
axes[1].legend()
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Half of the *remaining* weights is removed in each of n rounds. How many are kept?
# 2. A cubic schedule removes most at the beginning. Why is that the right end?
# 3. Train the last ticket's mask from *other* first weights. What does it tell?

# %% [markdown]
# ## Solutions

# %%
assert [round(0.5**n, 4) for n in range(4)] == [1.0, 0.5, 0.25, 0.125]  # the density law (1 − p)ⁿ

# %%
# At the beginning there is much to spare; at the end every weight matters and training needs time.
ramp = Ramp(0.9, 100, "cubic")
assert ramp(20) - ramp(0) > 5 * (ramp(100) - ramp(80))

# %%
other = new(7).state_dict()
print(
    f"the mask from other weights: {accuracy(trained_under(mask, other)):.1%}, "
    f"from its own: {accuracy(trained_under(mask, start)):.1%}"
)
