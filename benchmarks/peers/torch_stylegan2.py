"""hvdgan's StyleGAN2 in PyTorch, made fast without extensions.

channels_last; styles scale the inputs of convolutions that serve the whole batch; blurs are matrix products along both
axes; scales are folded into weights; one generator forward for both updates, as in hvdgan; real and generated images
pass the discriminator together; fused Adam; cuDNN's tuning; TF32, which TensorFlow has by default.
"""

import itertools
import math

import torch
from torch import nn
from torch.nn import functional
from torch.optim import swa_utils
from work import CHANNELS, POOL, StyleGAN2, Work

FILTER = (1 / 8, 3 / 8, 3 / 8, 1 / 8)
ROOT = math.sqrt(2.0)
"""gain of a leaky ReLU; it is folded into what comes before, since ROOT * leaky_relu(x) = leaky_relu(ROOT * x)"""


def resampling(inputs: int, outputs: int, edge: int, stride: int) -> torch.Tensor:
    """The matrix (outputs, inputs) of a filter along an axis, with an edge of zeros."""
    places = torch.arange(inputs) + edge - stride * torch.arange(outputs)[:, None]
    weights = torch.tensor([*FILTER, 0.0])
    return weights[torch.where((places >= 0) & (places < 4), places, 4)]


def resampled(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Images (B, C, H, W), channels_last, under a matrix along both axes of space."""
    x = x.permute(0, 2, 3, 1)
    rows = torch.matmul(matrix, x.flatten(2)).unflatten(2, x.shape[2:])
    return torch.matmul(matrix, rows).permute(0, 3, 1, 2)


class Dense(nn.Module):
    """Dense layer with equalised learning rate, and leaky ReLU unless it is linear; in its input's dtype."""

    def __init__(self, inputs: int, outputs: int, *, bias: float = 0.0, linear: bool = False, rate: float = 1.0):
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(inputs, outputs) / rate)
        self.bias = nn.Parameter(torch.full((outputs,), bias / rate))
        self.linear, self.beta = linear, rate if linear else ROOT * rate
        self.alpha = self.beta / math.sqrt(inputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel, bias = self.kernel.to(x.dtype), self.bias.to(x.dtype)
        x = torch.addmm(bias, x, kernel, beta=self.beta, alpha=self.alpha)
        return x if self.linear else functional.leaky_relu(x, 0.2)


class StyledConv(nn.Module):
    """Modulated 3x3 convolution of images of this size, doubled if `up`; noise, bias, leaky ReLU."""

    def __init__(self, inputs: int, outputs: int, size: int, dtype: torch.dtype, *, up: bool) -> None:
        super().__init__()
        self.style = Dense(StyleGAN2.LATENT_SIZE, inputs, bias=1.0, linear=True)
        shape = (inputs, outputs) if up else (outputs, inputs)
        self.kernel = nn.Parameter(torch.randn(*shape, 3, 3))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.noise_strength = nn.Parameter(torch.zeros(()))
        self.up, self.gain = up, 1.0 / math.sqrt(9 * inputs)
        # Times 2 along each axis, because a transposed convolution adds up a quarter of its weights.
        blur = 2.0 * resampling(2 * size + 1, 2 * size, 1, 1) if up else torch.zeros(())
        self.register_buffer("blur", blur.to(dtype))

    def forward(self, x: torch.Tensor, latent: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        scales, kernel = self.style(latent), self.kernel * self.gain
        squares = kernel.square().sum((2, 3))  # (inputs, outputs) if up
        demodulation = ROOT * (scales.square() @ (squares if self.up else squares.t()) + 1e-8).rsqrt()
        x, kernel = x * scales.to(x.dtype)[:, :, None, None], kernel.to(x.dtype)
        if self.up:
            x = resampled(functional.conv_transpose2d(x, kernel, stride=2), self.blur)
        else:
            x = functional.conv2d(x, kernel, padding=1)
        bias, noise = (ROOT * self.bias).to(x.dtype), (noise * (ROOT * self.noise_strength)).to(x.dtype)
        x = torch.addcmul(bias[:, None, None], x, demodulation.to(x.dtype)[:, :, None, None])
        return functional.leaky_relu(x + noise, 0.2)


class ToImage(nn.Module):
    """Modulated 1x1 convolution to the image's channels, float32; not demodulated."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.style = Dense(StyleGAN2.LATENT_SIZE, inputs, bias=1.0, linear=True)
        self.kernel = nn.Parameter(torch.randn(CHANNELS, inputs))
        self.bias = nn.Parameter(torch.zeros(CHANNELS))
        self.gain = 1.0 / math.sqrt(inputs)

    def forward(self, x: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        x = x * self.style(latent).to(x.dtype)[:, :, None, None]
        kernel = (self.kernel * self.gain).to(x.dtype)[:, :, None, None]
        return functional.conv2d(x, kernel).float() + self.bias[:, None, None]


class Generator(nn.Module):
    """Latents (B, 2, latent_size), crossover (B,) and one noise map (B, 1, H, W) per convolution to float32 images."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.dtype, latent = dtype_of(work), StyleGAN2.LATENT_SIZE
        self.mapping = nn.Sequential(*[Dense(latent, latent, rate=0.01) for _ in range(StyleGAN2.MAPPING_LAYERS)])
        widths = work.widths[::-1]
        self.start = nn.Parameter(torch.randn(widths[0], 4, 4))
        self.convolutions = nn.ModuleList([StyledConv(widths[0], widths[0], 4, self.dtype, up=False)])
        self.to_image = nn.ModuleList([ToImage(widths[0])])
        self.sizes = [4]
        for wide, narrow in itertools.pairwise(widths):
            size = self.sizes[-1]
            self.convolutions.append(StyledConv(wide, narrow, size, self.dtype, up=True))
            self.convolutions.append(StyledConv(narrow, narrow, 2 * size, self.dtype, up=False))
            self.to_image.append(ToImage(narrow))
            self.register_buffer(f"double_{size}", 2.0 * resampling(2 * size, size, 1, 2).t().contiguous())
            self.sizes += [2 * size, 2 * size]
        self.styles = len(self.sizes) + 1
        self.register_buffer("places", torch.arange(self.styles, dtype=torch.float32))
        self.register_buffer("style_mean", torch.zeros(latent))

    def forward(self, latents: torch.Tensor, crossover: torch.Tensor, noise: list[torch.Tensor]) -> torch.Tensor:
        x = latents * (latents.square().mean(-1, keepdim=True) + 1e-8).rsqrt()
        x = self.mapping(x.flatten(0, 1)).view(latents.shape)
        self.style_mean.lerp_(x[:, 0].detach().mean(0), 1.0 - StyleGAN2.DECAY)
        styles = torch.where((self.places < crossover[:, None])[..., None], x[:, :1], x[:, 1:]).unbind(1)
        x = self.start.to(self.dtype).expand(len(latents), -1, -1, -1)
        images = None
        for number, layer in enumerate(self.convolutions):
            x = layer(x, styles[number], noise[number])
            if number % 2 == 0:
                image = self.to_image[number // 2](x, styles[number + 1])
                if images is not None:
                    image = image + resampled(images, getattr(self, f"double_{self.sizes[number] // 2}"))
                images = image
        return images


class Conv(nn.Module):
    """Convolution with equalised learning rate, bias and leaky ReLU; `size`: blur and halve images of this size."""

    def __init__(self, inputs: int, outputs: int, dtype: torch.dtype, *, size: int = 0, gain: float = 1.0) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(outputs, inputs, 3, 3))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.gain = ROOT * gain
        self.scale, self.halves = self.gain / math.sqrt(9 * inputs), size > 0
        self.register_buffer("blur", resampling(size, size + 1, 2, 1).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel, bias = (self.kernel * self.scale).to(x.dtype), (self.bias * self.gain).to(x.dtype)
        if self.halves:
            x = functional.conv2d(resampled(x, self.blur), kernel, bias, stride=2)
        else:
            x = functional.conv2d(x, kernel, bias, padding=1)
        return functional.leaky_relu(x, 0.2)


class FromImage(nn.Module):
    """1x1 convolution of images, with bias and leaky ReLU."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(outputs, CHANNELS))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel, bias = self.kernel * (ROOT / math.sqrt(CHANNELS)), self.bias * ROOT
        return functional.leaky_relu(functional.conv2d(x, kernel.to(x.dtype)[:, :, None, None], bias.to(x.dtype)), 0.2)


class Block(nn.Module):
    """Residual block that halves images."""

    def __init__(self, inputs: int, outputs: int, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.skip = nn.Parameter(torch.randn(outputs, inputs))
        self.scale = math.sqrt(0.5 / inputs)
        self.convolutions = nn.Sequential(
            Conv(inputs, inputs, dtype), Conv(inputs, outputs, dtype, size=size, gain=math.sqrt(0.5))
        )
        self.register_buffer("halving", resampling(size, size // 2, 1, 2).to(dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skip = functional.conv2d(resampled(x, self.halving), (self.skip * self.scale).to(x.dtype)[:, :, None, None])
        return self.convolutions(x) + skip


class Discriminator(nn.Module):
    """Images (n B, C, H, W) to logits (n B,); a group of the minibatch standard deviation is within B images."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.dtype = dtype_of(work)
        self.group = max(count for count in range(1, StyleGAN2.GROUP + 1) if work.batch_size % count == 0)
        widths, size, top = work.widths, work.image_size, work.widths[-1]
        self.from_image = FromImage(widths[0])
        pairs = itertools.pairwise(widths)
        self.blocks = nn.Sequential(*[Block(*pair, size >> depth, self.dtype) for depth, pair in enumerate(pairs)])
        self.last = Conv(top + 1, top, self.dtype)
        self.dense = Dense(16 * top, top)
        self.to_logit = Dense(top, 1, linear=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.from_image(images.to(self.dtype)))
        variance = x.float().unflatten(0, (-1, self.group)).var(1, unbiased=False)
        deviation = (variance + 1e-8).sqrt().mean((1, 2, 3)).to(x.dtype)  # (groups,)
        seen = deviation[:, None].expand(-1, self.group).reshape(-1, 1, 1, 1).expand(-1, -1, 4, 4)
        x = self.last(torch.cat([x, seen], 1))
        return self.to_logit(self.dense(x.permute(0, 2, 3, 1).flatten(1)).float()).flatten()


class Trainer:
    """Both networks with their optimizers, the average of the generator and the step that trains them.

    Args:
        work: settings of the run.
        pool: batches of pixels.
        compiled: True for torch.compile; not of the R1 penalty, whose second derivative it does not support.
    """

    def __init__(self, work: Work, pool: list[torch.Tensor], *, compiled: bool) -> None:
        self.work, self.pool, on_gpu = work, pool, work.device == "gpu"
        self.device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        torch.backends.cudnn.benchmark = on_gpu
        torch.set_float32_matmul_precision("high")
        networks = [Generator(work), Discriminator(work)]
        self.plain = [network.to(self.device, memory_format=torch.channels_last) for network in networks]
        called = [torch.compile(network, dynamic=False) if compiled else network for network in self.plain]
        self.generator, self.discriminator = called
        self.optimizers = [
            torch.optim.Adam(
                network.parameters(),
                lr=lazy * StyleGAN2.LEARNING_RATE,
                betas=(0.0, StyleGAN2.BETA_2**lazy),
                eps=StyleGAN2.EPSILON,
                fused=True,
            )
            for network, lazy in zip(self.plain, (1.0, StyleGAN2.LAZY), strict=True)
        ]
        self.averaged = [*self.plain[0].parameters(), self.plain[0].style_mean]
        self.averages = [value.detach().clone() for value in self.averaged]
        self.move = swa_utils.get_ema_multi_avg_fn(StyleGAN2.DECAY)

    def step(self, number: int) -> list[torch.Tensor]:
        """One update of the discriminator, if due one with the R1 penalty, one of the generator; the losses."""
        pixels = self.pool[number % POOL].to(self.device, non_blocking=True)
        images = pixels.float().div_(127.5).sub_(1.0)
        fakes = self.generator(*self._draw())
        real_logits, fake_logits = self.discriminator(torch.cat([images, fakes.detach()])).chunk(2)
        losses = [functional.softplus(-real_logits).mean() + functional.softplus(fake_logits).mean()]
        self._update(1, losses[0])
        if (number + 1) % StyleGAN2.R1_EVERY == 0:
            losses.append(self._r1(images.requires_grad_()))
            self._update(1, losses[-1])
        # The discriminator needs no gradients here.
        self.plain[1].requires_grad_(False)
        losses.append(functional.softplus(-self.discriminator(fakes)).mean())
        self._update(0, losses[-1])
        self.plain[1].requires_grad_(True)
        self.move(self.averages, self.averaged, None)
        return [loss.detach() for loss in losses]

    def _draw(self) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        batch, styles = self.work.batch_size, self.plain[0].styles
        latents = torch.randn(batch, 2, StyleGAN2.LATENT_SIZE, device=self.device)
        mixed, place = torch.rand(2, batch, device=self.device)
        crossover = torch.where(mixed < StyleGAN2.MIXING, 1.0 + (place * (styles - 1)).floor(), float(styles))
        sizes = self.plain[0].sizes
        noise = torch.randn(batch, sum(size * size for size in sizes), device=self.device)
        maps = noise.split([size * size for size in sizes], 1)
        return latents, crossover, [each.view(batch, 1, size, size) for each, size in zip(maps, sizes, strict=True)]

    def _r1(self, images: torch.Tensor) -> torch.Tensor:
        logits = self.plain[1](images)
        (slopes,) = torch.autograd.grad(logits.sum(), images, create_graph=True)
        # Adding 0 * logits gives the last bias, which does not affect the penalty, a gradient of 0.
        penalty = slopes.square().sum((1, 2, 3)).mean() + 0.0 * logits.sum()
        return 0.5 * StyleGAN2.R1_GAMMA * StyleGAN2.R1_EVERY * penalty

    def _update(self, place: int, loss: torch.Tensor) -> None:
        self.optimizers[place].zero_grad(set_to_none=True)
        loss.backward(inputs=[*self.plain[place].parameters()])
        self.optimizers[place].step()

    def weights(self) -> list[float]:
        """The sum over each trained weight."""
        return [float(p.detach().double().sum()) for network in self.plain for p in network.parameters()]


def dtype_of(work: Work) -> torch.dtype:
    """The dtype of the convolutions; parameters are float32."""
    return torch.bfloat16 if work.precision == "mixed_bfloat16" else torch.float32
