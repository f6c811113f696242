"""Trains a GAN from Python, in cells that a notebook could hold, and draws samples: python examples/in_python.py

In a notebook the class of a GAN may stand in a cell; here it comes from the file beside this one. The same file runs on
several ranks: horovodrun -np 2 python examples/in_python.py
"""

# %% Train. Every flag of hvdgan.train is a setting, with underscores.
from my_gan import MyGAN

import hvdgan

run = hvdgan.fit(recipe=MyGAN, data="digits", image_size=16, steps=1000, run_dir="runs/in_python")
print(run.run_dir, run.step, run.metrics["fool/loss"])

# %% Draw. The result is (N, H, W, C), here as uint8.
pictures = run.sample(16, seed=1)
print(pictures.shape, pictures.dtype)

# %% The same call resumes the run; here with more steps.
run = hvdgan.fit(recipe=MyGAN, data="digits", image_size=16, steps=1200, run_dir="runs/in_python")
print(run.step)
