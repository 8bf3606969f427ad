# %% [markdown]
# # 5. Training under a mask
#
# The forward pass uses M⊙W. With the exact gradient a removed weight gets none and never returns;
# with the *straight-through estimator* it keeps learning behind the mask. L1 pulls every weight by a
# constant, so many reach zero by themselves; L2 pulls a small weight by next to nothing, so none
# does.

# %%
import torch
from matplotlib import pyplot as plt

from digits import accuracy, new, train, trained
from espalier import Scores, criteria, remove_lowest, sites, zero
from espalier.training import held

fractions, curves = (
    [0.7, 0.8, 0.9, 0.95],
    {"pruned": [], "trained under the mask": [], "straight through": []},
)
for fraction in fractions:
    for label, line in curves.items():
        model = trained()
        places = sites(model, "weights")
        mask = remove_lowest(criteria.load("magnitude")(model, places), fraction)
        if label == "pruned":
            zero(model, mask)
        else:
            optimizer, ste = torch.optim.AdamW(model.parameters(), lr=2e-3), label == "straight through"
            with held(places, mask, optimizer, ste=ste) as mask_held:

                def choose_again(step, mask_held=mask_held, fraction=fraction):
                    if mask_held.ste and step % 10 == 9:  # by what the weights have learned behind the mask
                        latent = Scores({name: w.abs() for name, w in mask_held.latent.items()})
                        mask_held.change(remove_lowest(latent, fraction))

                train(model, steps=60, lr=2e-3, optimizer=optimizer, after=choose_again)
        line.append(accuracy(model))
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for label, line in curves.items():
    axes.plot(fractions, line, marker="o", label=label)
axes.set(xlabel="weights removed", ylabel="test accuracy")
axes.legend()
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Minimise ½(w − a)² + λ|w|. For which a is w exactly zero? And with λ·w² instead?
# 2. Show that momentum would move a removed weight, if nothing held it.
# 3. Train a network with L1 (a proximal step after each step) and count its zeros.

# %% [markdown]
# ## Solutions

# %%
# |a| ≤ λ: the soft threshold sign(a)·max(|a| − λ, 0). With λ·w² it is a/(1 + 2λ), never zero.
a, strength = torch.tensor([-2.0, -0.3, 0.2, 1.5]), 0.5
w = a.clone().requires_grad_()
for _ in range(400):
    (0.5 * (w - a) ** 2).sum().backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.copy_(w.sign() * (w.abs() - 0.1 * strength).clamp_min(0))  # the proximal step
        w.grad = None
assert torch.allclose(w, a.sign() * (a.abs() - strength).clamp_min(0), atol=1e-4)

# %%
w = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9)
w.sum().backward()
optimizer.step()
with torch.no_grad():
    w[0] = 0  # pruned
w.grad.zero_()  # and without a gradient
optimizer.step()
assert w[0] != 0

# %%
model = new()
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
weights = [site.linear.weight for site in sites(model, "weights")]


def shrink(step):
    with torch.no_grad():
        for weight in weights:
            weight.copy_(weight.sign() * (weight.abs() - optimizer.param_groups[0]["lr"] * 0.5).clamp_min(0))


train(model, optimizer=optimizer, after=shrink)
zeros = sum((w == 0).sum().item() for w in weights) / sum(w.numel() for w in weights)
print(f"{zeros:.0%} of the weights are zero, accuracy {accuracy(model):.1%}")
