"""Models of our own, in the form of transformers; `import espalier` registers them with its auto classes.

all_attention     attention alone: persistent key and value vectors take the place of the feed-forward network
transformer_xl    the same attention with a feed-forward network, to compare with
"""
