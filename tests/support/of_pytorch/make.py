"""Writes NAME.safetensors, the state_dict of a small network of PyTorch, and NAME.npz, an input and its output.

They were made by PyTorch 2.13.0 on a CPU, with numpy and safetensors, in an environment of its own: python make.py
"""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class Generator(nn.Module):
    """The generator of DCGAN (Radford et al. 2016) for 16 x 16 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False),
            *(nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 4, 2, 1, bias=False)),
            *(nn.BatchNorm2d(4), nn.ReLU(), nn.ConvTranspose2d(4, 1, 4, 2, 1, bias=False), nn.Tanh()),
        )

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        return self.main(latents[:, :, None, None])


class Block(nn.Module):
    """A residual block of two grouped convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, groups=2, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, groups=4)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class Residual(nn.Module):
    """Residual blocks between other layers, and a dense one behind pictures that are made flat."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = weight_norm(nn.Conv2d(3, 8, 3, padding=1))
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))
        self.depth = nn.Conv2d(8, 16, 3, padding=1, groups=8)
        self.up = nn.ConvTranspose2d(16, 4, 2, 2)
        self.head = nn.Linear(4 * 8 * 8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(torch.relu(self.up(self.depth(x))).flatten(1))


def write(name: str, network: nn.Module, *shape: int) -> None:
    """Write a network whose parameters are all different, and whose statistics have moved."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.2 * torch.randn(parameter.shape)
    for _ in range(3):
        network.train()(torch.randn(8, *shape))
    inputs = torch.randn(2, *shape)
    with torch.no_grad():
        outputs = network.eval()(inputs)
    folder = Path(__file__).parent
    save_file({key: value.clone() for key, value in network.state_dict().items()}, folder / f"{name}.safetensors")
    (folder / f"{name}.safetensors").chmod(0o644)
    np.savez(folder / f"{name}.npz", inputs=inputs.numpy(), outputs=outputs.numpy())


if __name__ == "__main__":
    torch.manual_seed(0)
    write("generator", Generator(), 6)
    write("residual", Residual(), 3, 4, 4)
