# %% [markdown]
# # 7. Network slimming
#
# In a convolution net every filter has a scale γ in its batch norm. An L1 penalty on these scales
# while training decides which filters matter; the others are removed with everything that reads them.
# At inference the norm itself is y = p·x + q and goes into the convolution before it.

# %%
import torch
from matplotlib import pyplot as plt
from torch import nn
from torch.nn import functional as F

from digits import data
from espalier import convnets, remove_lowest


def build():
    torch.manual_seed(0)
    layers = []
    for a, b in ((1, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10))


def train(net, strength=0.0, steps=80):
    images, labels, _, _ = data()
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    generator = torch.Generator().manual_seed(0)
    with convnets.slimmed(net, optimizer, strength):
        for _ in range(steps):
            rows = torch.randint(len(images), (64,), generator=generator)
            F.cross_entropy(net(images[rows]), labels[rows]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return net.eval()


def accuracy(net):
    _, _, images, labels = data()
    with torch.no_grad():
        return (net(images).argmax(-1) == labels).float().mean().item()


example = torch.zeros(1, 1, 8, 8)
plain, slim = train(build().train()), train(build().train(), strength=1.0)
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
for label, net in (("plain", plain), ("slimmed", slim)):
    found = torch.cat(list(convnets.scales(convnets.filter_sites(net, example)).values()))
    axes.plot(found.sort().values, label=f"{label}, {accuracy(net):.1%}")
axes.set(xlabel="filters, by scale", ylabel="|γ|")
axes.legend()
plt.show()

# %%
mask = remove_lowest(convnets.scales(convnets.filter_sites(slim, example)), 0.4, scope="layer")
before = sum(p.numel() for p in slim.parameters())
convnets.remove_filters(slim, mask, example)
cut = accuracy(slim)
train(slim.train(), steps=40)
after = sum(p.numel() for p in slim.parameters())
print(f"{after:,} of {before:,} parameters; {cut:.1%}, trained again {accuracy(slim):.1%}")

# %% [markdown]
# ## Exercises
#
# 1. Fold the batch norms and check that nothing changes.
# 2. Which filters would the sum of their weights (`convnets.l1`) remove from the plain net? Compare
#    at 40 % of each layer.
# 3. A filter with γ = 0 still writes a constant. Which one?

# %% [markdown]
# ## Solutions

# %%
images = data()[2][:16]
want = plain(images)
assert convnets.fold_batch_norms(plain, example) == 3
assert torch.allclose(plain(images), want, atol=1e-4)

# %%
for score in (convnets.l1, convnets.scales):
    net = train(build().train())
    mask = remove_lowest(score(convnets.filter_sites(net, example)), 0.4, scope="layer")
    convnets.remove_filters(net, mask, example)
    print(score.__name__, f"{accuracy(net):.1%}, trained again {accuracy(train(net.train(), steps=40)):.1%}")

# %%
net = train(build().train())
with torch.no_grad():
    net[1].weight[0] = 0
assert torch.allclose(net[:3](images)[:, 0], net[1].bias[0].relu())  # act(β), everywhere
