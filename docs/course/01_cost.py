# %% [markdown]
# # 1. What does a transformer cost?
#
# A linear layer multiplies every token by every weight: B·L·in·out multiply-accumulates (MACs).
# Attention adds 2·L²·d for each head: every token is compared with every other one. So short inputs
# are paid in weights, long ones in attention, and pruning weights, heads or tokens pays in different
# places.

# %%
import torch
from matplotlib import pyplot as plt
from torch.utils.flop_counter import FlopCounterMode

from digits import new
from espalier import cost, sites

model = new()
print(cost(model, tokens=17))  # 16 patches and the class token

# %% [markdown]
# The cost of a model is a sum over its *sites*, the places where units can be removed. Each unit has
# its share.

# %%
for site in sites(model):
    print(
        f"{site.name:32} {site.units:3} units of {site.parameters_per_unit():5,} parameters, "
        f"{site.macs_per_unit(17):7,} MACs"
    )

# %%
lengths = [8, 16, 32, 64, 128, 256, 512]
wide = new(hidden_size=96, intermediate_size=384, num_attention_heads=6)
shares = {"heads: projections": [], "heads: attention": [], "neurons": []}
for tokens in lengths:
    heads = sum(s.units * s.macs_per_unit(tokens) for s in sites(wide, "heads"))
    attending = sum(2 * s.units * tokens * tokens * s.sizes["d"] for s in sites(wide, "heads"))
    shares["heads: projections"].append(heads - attending)
    shares["heads: attention"].append(attending)
    shares["neurons"].append(sum(s.units * s.macs_per_unit(tokens) for s in sites(wide, "neurons")))
total = [sum(each) for each in zip(*shares.values())]
figure, axes = plt.subplots(figsize=(6, 3), layout="constrained")
axes.stackplot(lengths, [[a / b for a, b in zip(line, total)] for line in shares.values()], labels=shares)
axes.set(xscale="log", xlabel="tokens", ylabel="share of the MACs", xlim=(8, 512), ylim=(0, 1))
axes.legend(loc="lower left")
plt.show()

# %% [markdown]
# ## Exercises
#
# 1. Count the MACs of one linear layer of 32 → 64 on 17 tokens by hand, and check with torch's
#    counter (which counts two operations for each MAC).
# 2. At which length is half of a layer's cost of attention with 96 channels and 384 neurons in the
#    two L² products?
# 3. Does splitting 96 channels into 12 heads instead of 6 change the cost?

# %% [markdown]
# ## Solutions

# %%
layer = torch.nn.Linear(32, 64)
with FlopCounterMode(display=False) as counter:
    layer(torch.randn(1, 17, 32))
assert counter.get_total_flops() == 2 * 17 * 32 * 64

# %%
# 12·L·E² = 2·L²·E, so L = 6·E = 576 tokens: later than the figure ends
assert 12 * 576 * 96**2 == 2 * 576**2 * 96

# %%
halves = new(hidden_size=96, intermediate_size=384, num_attention_heads=12)
assert cost(halves, tokens=64).macs == cost(wide, tokens=64).macs
