"""The same networks in PyTorch, made fast: `python torch_peers.py PROGRAM WORK`, with the work as JSON.

channels_last, one generator forward for both updates, fused Adam, cuDNN's tuning. torch: one process. torch-compile:
the same with torch.compile. ddp: DistributedDataParallel over Gloo, or over NCCL on GPUs, started by torchrun.
StyleGAN2 is in torch_stylegan2.py, for one process.
"""

import json
import os
import sys

import torch
import torch_stylegan2
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from work import ADAM, CHANNELS, LATENT_SIZE, POOL, Work, pin, train


def networks(work: Work) -> list[nn.Module]:
    """Generator (B, latent_size, 1, 1) -> (B, C, H, W), and discriminator (B, C, H, W) -> (B, 1, 1, 1) logits."""
    up: list[nn.Module] = []
    last = LATENT_SIZE
    for depth, width in enumerate(reversed(work.widths)):
        how = {"stride": 2, "padding": 1} if depth else {"stride": 1, "padding": 0}
        up += [nn.ConvTranspose2d(last, width, 4, bias=False, **how), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        last = width
    up += [nn.ConvTranspose2d(last, CHANNELS, 4, stride=2, padding=1), nn.Tanh()]

    down: list[nn.Module] = []
    last = CHANNELS
    for depth, width in enumerate(work.widths):
        down += [nn.Conv2d(last, width, 4, stride=2, padding=1, bias=not depth)]
        down += [nn.BatchNorm2d(width)] if depth else []
        down += [nn.LeakyReLU(0.2, inplace=True)]
        last = width
    down += [nn.Conv2d(last, 1, 4)]
    return [_initialised(nn.Sequential(*part)).to(memory_format=torch.channels_last) for part in (up, down)]


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
        pool: batches of pixels.
        over_ranks: True to let DistributedDataParallel reduce the gradients.
        compiled: True for torch.compile.
    """

    def __init__(self, work: Work, pool: list[torch.Tensor], *, over_ranks: bool, compiled: bool) -> None:
        self.work, self.pool, on_gpu = work, pool, work.device == "gpu"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        torch.backends.cudnn.benchmark = on_gpu
        self.plain = [network.to(self.device) for network in networks(work)]
        called = [torch.compile(network) if compiled else network for network in self.plain]
        self.alone = called[1]
        if over_ranks:
            # The discriminator runs twice before its backward pass; broadcasting BatchNorm's statistics in between
            # would change tensors that the first pass saved. The other programs do not reduce them either.
            how = {"broadcast_buffers": False, "gradient_as_bucket_view": True}
            called = [
                DistributedDataParallel(each, device_ids=[self.device] if on_gpu else None, **how) for each in called
            ]
        self.generator, self.discriminator = called
        adam = {"lr": ADAM["learning_rate"], "betas": (ADAM["beta_1"], 0.999), "fused": True}
        self.optimizers = [torch.optim.Adam(network.parameters(), **adam) for network in self.plain]

    def step(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One update of the discriminator, then one of the generator, on the same fakes; the losses."""
        pixels = self.pool[number % POOL].to(self.device, non_blocking=True)
        images = pixels.float().div_(127.5).sub_(1.0)
        latents = torch.randn(self.work.batch_size, LATENT_SIZE, 1, 1, device=self.device)
        half = {"dtype": torch.bfloat16, "enabled": self.work.precision == "mixed_bfloat16"}
        with torch.autocast(self.device.type, **half):
            fakes = self.generator(latents)
            real_logits, fake_logits = self.discriminator(images), self.discriminator(fakes.detach())
        d_loss = functional.softplus(-real_logits.float()).mean() + functional.softplus(fake_logits.float()).mean()
        self._update(1, d_loss)
        # The discriminator needs no gradients here, and none are reduced.
        self.plain[1].requires_grad_(False)
        with torch.autocast(self.device.type, **half):
            fake_logits = self.alone(fakes)
        g_loss = functional.softplus(-fake_logits.float()).mean()
        self._update(0, g_loss)
        self.plain[1].requires_grad_(True)
        return d_loss.detach(), g_loss.detach()

    def _update(self, place: int, loss: torch.Tensor) -> None:
        self.optimizers[place].zero_grad(set_to_none=True)
        loss.backward()
        self.optimizers[place].step()

    def weights(self) -> list[float]:
        """The sum over each trained weight."""
        return [float(p.detach().double().sum()) for network in self.plain for p in network.parameters()]


def pixel_pool(work: Work, rank: int) -> list[torch.Tensor]:
    """Batches of random pixels (B, C, H, W) uint8, channels_last, different ones on each rank."""
    torch.manual_seed(rank)
    shape = (work.batch_size, CHANNELS, work.image_size, work.image_size)
    pixels = [torch.randint(0, 256, shape, dtype=torch.uint8) for _ in range(POOL)]
    pixels = [batch.contiguous(memory_format=torch.channels_last) for batch in pixels]
    return [batch.pin_memory() for batch in pixels] if work.device == "gpu" else pixels


def main(program: str, work: Work) -> None:
    """Run a program."""
    rank = local_rank = int(os.environ.get("LOCAL_RANK", 0))
    pin(work, local_rank)
    if work.device == "gpu":
        torch.cuda.set_device(local_rank)
    else:
        torch.set_num_threads(1)
    if program == "ddp":
        distributed.init_process_group("nccl" if work.device == "gpu" else "gloo")
        rank = distributed.get_rank()
    pool, compiled = pixel_pool(work, rank), program == "torch-compile"
    if work.network == "stylegan2":
        trainer = torch_stylegan2.Trainer(work, pool, compiled=compiled)
    else:
        trainer = Trainer(work, pool, over_ranks=program == "ddp", compiled=compiled)
    parameters = [sum(parameter.numel() for parameter in network.parameters()) for network in trainer.plain]
    train(work, rank, parameters, trainer.step, trainer.weights, torch.cuda.max_memory_allocated)
    if program == "ddp":
        distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Work(**json.loads(sys.argv[2])))
