"""DCGAN in PyTorch, made fast: channels_last, one generator forward for both updates, fused Adam, cuDNN's tuning."""

from typing import Any

import torch
import work as common
from torch import nn
from torch.nn import functional


def networks(work: common.Work) -> tuple[nn.Module, nn.Module]:
    """Generator (B, latent_size, 1, 1) -> (B, C, H, W), and discriminator (B, C, H, W) -> (B, 1, 1, 1) logits."""
    up: list[nn.Module] = []
    last = work.latent_size
    for depth, width in enumerate(reversed(work.widths)):
        how = {"stride": 2, "padding": 1} if depth else {"stride": 1, "padding": 0}
        up += [nn.ConvTranspose2d(last, width, 4, bias=False, **how), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        last = width
    up += [nn.ConvTranspose2d(last, work.channels, 4, stride=2, padding=1), nn.Tanh()]

    down: list[nn.Module] = []
    last = work.channels
    for depth, width in enumerate(work.widths):
        down += [nn.Conv2d(last, width, 4, stride=2, padding=1, bias=not depth)]
        down += [nn.BatchNorm2d(width)] if depth else []
        down += [nn.LeakyReLU(0.2, inplace=True)]
        last = width
    down += [nn.Conv2d(last, 1, 4)]
    return tuple(_initialised(nn.Sequential(*part)).to(memory_format=torch.channels_last) for part in (up, down))


def _initialised(network: nn.Module) -> nn.Module:
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.normal_(layer.weight, 0.0, 0.02)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.normal_(layer.weight, 1.0, 0.02)
    return network


class Trainer:
    """Both networks with their optimizers and the step that trains them.

    Args:
        work: settings of the run; the precision mixed_bfloat16 is autocast.
        rank: seed of the pixels.
        wrap: class that makes a network reduce its gradients over the ranks.
        wrapping: arguments of `wrap`.
    """

    def __init__(self, work: common.Work, rank: int = 0, wrap: type[nn.Module] | None = None, **wrapping: Any) -> None:
        self.work = work
        on_gpu = work.device == "gpu"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.backends.cudnn.benchmark = True
        self.plain = tuple(network.to(self.device) for network in networks(work))
        self.generator, self.discriminator = (wrap(n, **wrapping) if wrap else n for n in self.plain)
        self.optimizers = [
            torch.optim.Adam(network.parameters(), work.learning_rate, (work.beta_1, 0.999), fused=True)
            for network in self.plain
        ]
        torch.manual_seed(rank)
        shape = (work.batch_size, work.channels, work.image_size, work.image_size)
        pixels = [torch.randint(0, 256, shape, dtype=torch.uint8) for _ in range(common.POOL)]
        self.pool = [batch.contiguous(memory_format=torch.channels_last) for batch in pixels]
        if on_gpu:
            self.pool = [batch.pin_memory() for batch in self.pool]

    def step(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One update of the discriminator, then one of the generator, on the same fakes; the losses."""
        pixels = self.pool[number % len(self.pool)].to(self.device, non_blocking=True)
        images = pixels.float().div_(127.5).sub_(1.0)
        latents = torch.randn(self.work.batch_size, self.work.latent_size, 1, 1, device=self.device)
        g_optimizer, d_optimizer = self.optimizers
        with self._autocast():
            fakes = self.generator(latents)
            real_logits, fake_logits = self.discriminator(images), self.discriminator(fakes.detach())
        d_loss = functional.softplus(-real_logits.float()).mean() + functional.softplus(fake_logits.float()).mean()
        d_optimizer.zero_grad(set_to_none=True)
        d_loss.backward()
        d_optimizer.step()
        # The discriminator needs no gradients here, and none are reduced.
        self.plain[1].requires_grad_(False)
        with self._autocast():
            fake_logits = self.plain[1](fakes)
        g_loss = functional.softplus(-fake_logits.float()).mean()
        g_optimizer.zero_grad(set_to_none=True)
        g_loss.backward()
        g_optimizer.step()
        self.plain[1].requires_grad_(True)
        return d_loss.detach(), g_loss.detach()

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.work.precision == "mixed_bfloat16")

    def parameters(self) -> dict[str, int]:
        """Count the trainable parameters."""
        counts = [sum(parameter.numel() for parameter in network.parameters()) for network in self.plain]
        return dict(zip(("generator", "discriminator"), counts, strict=True))

    def weights(self) -> list[float]:
        """Return the sum over each trained weight."""
        return [float(p.detach().double().sum()) for network in self.plain for p in network.parameters()]
