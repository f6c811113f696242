"""PyTorch's DistributedDataParallel over Gloo, or over NCCL on GPUs, started by torchrun."""

import os

import torch
import work as common
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch_gan import Trainer


def main() -> None:
    """Train on one of the ranks."""
    work = common.parse()
    local_rank = int(os.environ["LOCAL_RANK"])
    common.pin(local_rank, work.device)
    devices = {}
    if work.device == "gpu":
        torch.cuda.set_device(local_rank)
        devices = {"device_ids": [local_rank]}
        distributed.init_process_group("nccl")
    else:
        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    # The discriminator runs twice before its backward pass; broadcasting BatchNorm's statistics in between would change
    # tensors that the first pass saved. The other programs do not reduce the statistics either.
    wrapping = {"broadcast_buffers": False, "gradient_as_bucket_view": True, **devices}
    trainer = Trainer(work, rank, DistributedDataParallel, **wrapping)
    common.train(work, rank, trainer.parameters(), trainer.step, trainer.weights)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
