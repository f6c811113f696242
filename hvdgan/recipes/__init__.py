"""hvdgan's recipes: one GAN per file, written like its paper."""
