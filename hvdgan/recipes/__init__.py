"""One file per GAN; each reads like its paper."""
