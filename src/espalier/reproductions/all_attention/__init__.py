"""Layer-wise pruning of the heads of All-attention by trained gates (Shim et al. 2021, arXiv 2110.03252).

steps                    the three steps of the paper: train, prune the trained model, measure the pruned one
all-attention.toml       its settings for WikiText-103
transformer-xl.toml      the same for the model it is compared with
"""
