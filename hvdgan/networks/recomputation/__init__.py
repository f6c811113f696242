"""Networks whose activations are computed again in the backward pass, instead of being kept (--remat)."""
