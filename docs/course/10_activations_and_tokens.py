# %% [markdown]
# # 10. What depends on the input: activations and tokens
#
# Weights are removed once. Activations and tokens are removed for each input anew, which must be
# decided while the model runs. ReLU gives exact zeros for about half of its inputs, GELU for none:
# there a threshold has to make them. A token whose column in the attention maps is small is hardly
# looked at by the others, and later layers can do without it.

# %%
import torch
from matplotlib import pyplot as plt

from digits import accuracy, data, new, train, trained
from espalier import dropping_tokens, even_schedule

model, images = trained(), data()[2][:200]


def share_of_zeros(model, threshold=0.0):
    found = []
    hook = model.vit.layers[0].mlp.activation_fn.register_forward_hook(
        lambda module, given, out: found.append((out.abs() <= threshold).float().mean().item())
    )
    with torch.no_grad():
        model(images)
    hook.remove()
    return found[0]


relu = train(new(hidden_act="relu"))
print(f"GELU: {share_of_zeros(model):.0%} zeros; ReLU: {share_of_zeros(relu):.0%}")

# %%
fractions, line = [0, 0.1, 0.2, 0.3, 0.4, 0.5], []
for fraction in fractions:
    with dropping_tokens(model, even_schedule(2, remove=fraction)):
        line.append(accuracy(model))
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.plot(fractions, line, marker="o")
axes.set(xlabel="tokens removed, mean over layers", ylabel="test accuracy")
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. The mean of a *row* of an attention map is no score. Why?
# 2. How does accuracy fall when activations below a threshold become zero?
# 3. Is the result for a digit the same alone and inside a batch?

# %% [markdown]
# ## Solutions

# %%
maps = torch.randn(4, 17, 17).softmax(-1)
assert torch.allclose(maps.mean(-1), torch.full((4, 17), 1 / 17))  # rows sum to one: every token gets 1/n
assert maps.mean(-2).std() > 0.005  # columns differ

# %%
for threshold in (0, 0.02, 0.05, 0.1, 0.2):
    hooks = [
        layer.mlp.activation_fn.register_forward_hook(
            lambda m, x, out, low=threshold: out * (out.abs() > low)
        )
        for layer in model.vit.layers
    ]
    print(f"{threshold}: {share_of_zeros(model, threshold):.0%} zeros, {accuracy(model):.1%}")
    for hook in hooks:
        hook.remove()

# %%
with dropping_tokens(model, even_schedule(2, remove=0.4)), torch.no_grad():
    assert torch.allclose(model(images[:1]).logits, model(images).logits[:1], atol=1e-4)
