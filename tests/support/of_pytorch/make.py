"""Writes NAME.safetensors, the state_dict of a small network of PyTorch, and NAME.npz, an input and its output.

They were made by PyTorch 2.13.0 on a CPU, with numpy and safetensors, in an environment of its own: python make.py
"""

from collections import OrderedDict
from itertools import pairwise
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


class Lin(nn.Module):
    """A weight for each channel, behind dropout."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Dropout(), nn.Conv2d(channels, 1, 1, bias=False))


class Features(nn.Module):
    """The convolutions of AlexNet in five slices, with these numbers of channels."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        first, *others = pairwise((3, *channels))
        parts = [nn.Conv2d(*first, 11, 4, 2), nn.ReLU()]
        for number, size in enumerate((5, 3, 3, 3)):
            parts += [nn.MaxPool2d(3, 2)] * (number < 2)
            parts += [nn.Conv2d(*others[number], size, padding=size // 2), nn.ReLU()]
        for number, (start, end) in enumerate(((0, 2), (2, 5), (5, 8), (8, 10), (10, 12)), 1):
            numbered = nn.Sequential(OrderedDict((str(each), parts[each]) for each in range(start, end)))
            self.add_module(f"slice{number}", numbered)


class LPIPS(nn.Module):
    """A perceptual distance (Zhang et al. 2018), with the names of the package lpips and fewer channels."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.scaling_layer = nn.Module()
        self.scaling_layer.register_buffer("shift", torch.tensor([-0.030, -0.088, -0.188])[None, :, None, None])
        self.scaling_layer.register_buffer("scale", torch.tensor([0.458, 0.448, 0.450])[None, :, None, None])
        self.net = Features(channels)
        for number, each in enumerate(channels):
            self.add_module(f"lin{number}", Lin(each))
        self.lins = nn.ModuleList(getattr(self, f"lin{number}") for number in range(5))

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        one, other = ((each - self.scaling_layer.shift) / self.scaling_layer.scale for each in pairs.unbind(1))
        total = torch.zeros(len(pairs))
        for features, lin in zip(self.net.children(), self.lins, strict=True):
            one, other = features(one), features(other)
            first, second = (each / (each.square().sum(1, keepdim=True).sqrt() + 1e-10) for each in (one, other))
            total = total + lin.model((first - second).square()).mean((1, 2, 3))
        return total


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
    write("lpips", LPIPS((4, 12, 24, 16, 16)), 2, 3, 32, 32)
