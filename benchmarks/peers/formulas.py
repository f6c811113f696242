"""Computes the formulas of benchmarks/metrics.py with published packages; runs in their environment, without hvdgan.

    python benchmarks/peers/formulas.py INPUTS.npz VALUES.json

VALUES.json becomes {"FORMULA": {"PACKAGE VERSION": value}} and, under "missing", the packages that are not installed.
"""

import importlib.metadata
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

Inputs = dict[str, np.ndarray]


def main() -> None:
    """Read the inputs, ask each package, write the values."""
    inputs, out = (Path(argument) for argument in sys.argv[1:])
    with np.load(inputs) as file:
        arrays = dict(file)
    values: dict[str, dict[str, float]] = {}
    missing = []
    for package, compute in PACKAGES.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for formula, value in compute(arrays):
                values.setdefault(formula, {})[f"{package} {version}"] = float(value)
    out.write_text(json.dumps({"values": values, "missing": missing}))


def torch_fidelity(arrays: Inputs) -> Iterator[tuple[str, float]]:
    import torch
    from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
    from torch_fidelity.metric_isc import isc_features_to_metric
    from torch_fidelity.metric_kid import kid_features_to_metric
    from torch_fidelity.metric_prc import prc_features_to_metric

    for name, prefix in (("Fréchet distance", ""), ("Fréchet distance, singular", "few_")):
        statistics = [
            fid_features_to_statistics(torch.from_numpy(arrays[prefix + kind].astype(np.float64)))
            for kind in ("fake", "real")
        ]
        yield name, fid_statistics_to_metric(*statistics, verbose=False)["frechet_inception_distance"]
    fake, real = (torch.from_numpy(arrays[kind].astype(np.float64)) for kind in ("fake", "real"))
    settings = {"kid_subsets": 1, "kid_subset_size": len(fake), "verbose": False}
    yield "kernel distance", kid_features_to_metric(fake, real, **settings)["kernel_inception_distance_mean"]
    found = isc_features_to_metric(torch.from_numpy(arrays["logits"]), splits=10, shuffle=False)
    yield "Inception score", found["inception_score_mean"]
    yield "Inception score, deviation", found["inception_score_std"]
    found = prc_features_to_metric(fake, real, prc_neighborhood=3, prc_batch_size=10_000, verbose=False)
    yield "precision", found["precision"]
    yield "recall", found["recall"]


def pytorch_fid(arrays: Inputs) -> Iterator[tuple[str, float]]:
    from pytorch_fid.fid_score import calculate_frechet_distance

    for name, prefix in (("Fréchet distance", ""), ("Fréchet distance, singular", "few_")):
        both = [arrays[prefix + kind].astype(np.float64) for kind in ("fake", "real")]
        moments = [each for some in both for each in (some.mean(axis=0), np.cov(some, rowvar=False))]
        yield name, calculate_frechet_distance(*moments)


def torchmetrics(arrays: Inputs) -> Iterator[tuple[str, float]]:
    import torch
    from torchmetrics.image.fid import FrechetInceptionDistance
    from torchmetrics.image.inception import InceptionScore
    from torchmetrics.image.kid import KernelInceptionDistance

    class Features(torch.nn.Identity):
        """The "images" are the features themselves."""

    for name, prefix in (("Fréchet distance", ""), ("Fréchet distance, singular", "few_")):
        fake, real = (torch.from_numpy(arrays[prefix + kind].astype(np.float64)) for kind in ("fake", "real"))
        network = Features()
        network.num_features = fake.shape[1]
        yield name, _updated(FrechetInceptionDistance(network), fake, real).compute().item()
    fake, real = (torch.from_numpy(arrays[kind].astype(np.float64)) for kind in ("fake", "real"))
    kernel = KernelInceptionDistance(Features(), subsets=1, subset_size=len(fake))
    yield "kernel distance", _updated(kernel, fake, real).compute()[0].item()
    score = InceptionScore(Features(), splits=1)
    score.update(torch.from_numpy(arrays["logits"]))
    yield "Inception score, one split", score.compute()[0].item()


def _updated(metric, fake, real):
    metric.update(real, real=True)
    metric.update(fake, real=False)
    return metric


def prdc(arrays: Inputs) -> Iterator[tuple[str, float]]:
    from prdc import compute_prdc

    both = [arrays[kind].astype(np.float64) for kind in ("real", "fake")]
    yield from ((name, value) for name, value in compute_prdc(*both, 3).items() if name in ("precision", "recall"))
    yield from ((name, value) for name, value in compute_prdc(*both, 5).items() if name in ("density", "coverage"))


def scipy(arrays: Inputs) -> Iterator[tuple[str, float]]:
    from scipy.stats import wasserstein_distance

    columns = zip(arrays["few_projections"].T, arrays["projections"].T, strict=True)
    yield "sliced Wasserstein distance", np.mean([wasserstein_distance(fake, real) for fake, real in columns])
    edges, numbers = arrays["edges"], [arrays[kind].astype(np.float64) for kind in ("others", "images")]
    middles = (edges[1:] + edges[:-1]) / 2
    counts = [[np.histogram(each[..., channel], edges)[0] for channel in range(3)] for each in numbers]
    distances = [wasserstein_distance(middles, middles, *each) for each in zip(*counts, strict=True)]
    yield "histogram distance", np.mean(np.divide(distances, numbers[1].std(axis=(0, 1, 2))))


def scikit_image(arrays: Inputs) -> Iterator[tuple[str, float]]:
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    images, others = arrays["images"], arrays["others"]
    settings = {"data_range": 2.0, "gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    both = list(zip(images, others, strict=True))
    yield "PSNR", np.mean([peak_signal_noise_ratio(one, other, data_range=2.0) for one, other in both])
    yield "SSIM without edges", np.mean([structural_similarity(*each, channel_axis=2, **settings) for each in both])
    # It leaves out 5 pixels at each edge, so padding by 5 mirrored pixels keeps those of the image.
    wide = [[np.pad(each, ((5, 5), (5, 5), (0, 0)), "reflect") for each in pair] for pair in both]
    yield "SSIM", np.mean([structural_similarity(*each, channel_axis=2, **settings) for each in wide])


def scoringrules(arrays: Inputs) -> Iterator[tuple[str, float]]:
    from scoringrules import crps_ensemble

    yield "CRPS", crps_ensemble(arrays["images"], arrays["members"], m_axis=0, estimator="fair").mean()


PACKAGES: dict[str, Callable[[Inputs], Iterator[tuple[str, float]]]] = {
    "torch-fidelity": torch_fidelity,
    "pytorch-fid": pytorch_fid,
    "torchmetrics": torchmetrics,
    "prdc": prdc,
    "scikit-image": scikit_image,
    "scoringrules": scoringrules,
    "scipy": scipy,
}


if __name__ == "__main__":
    main()
