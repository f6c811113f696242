"""One training step: forward, gradients, reduction, optimizers."""
