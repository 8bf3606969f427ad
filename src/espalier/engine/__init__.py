"""How a model is run and watched: gates, activations, gradients, caches."""
