"""One process with PyTorch."""

import torch
import work as common
from torch_gan import Trainer


def main() -> None:
    """Train."""
    work = common.parse()
    common.pin(0, work.device)
    if work.device == "cpu":
        torch.set_num_threads(1)
    trainer = Trainer(work)
    common.train(work, 0, trainer.parameters(), trainer.step, trainer.weights)


if __name__ == "__main__":
    main()
