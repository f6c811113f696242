"""Chooses into how many groups the bundles of an update's gradients are reduced.

Horovod reduces the bundles of a group together, when all of them are ready. Bundles without a group are reduced as they
become ready, while the backward pass still computes others, and which of them share a buffer differs from run to run.
So do the last bits of a sum over three and more ranks: a ring begins each part of a buffer at another rank, so a
number's place in the buffer decides the order in which the ranks are added. Two ranks have one order.
"""

import dataclasses
from typing import Literal

from hvdgan.cli.errors import UserError


@dataclasses.dataclass(frozen=True)
class Grouping:
    """The user's choice of groups.

    Args:
        wanted: number of groups, or "auto".
        deterministic: True if every run must give the same bits.

    Raises:
        UserError: more than one group is wanted, and the same bits.
    """

    wanted: int | Literal["auto"] = "auto"
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.deterministic and self.wanted not in (1, "auto"):
            raise UserError(
                f"--gradient-groups {self.wanted}: --deterministic needs one group, because with several, three and "
                "more ranks sum in another order in every run; leave out one of the two flags"
            )

    def groups(self, size: int, bundles: int, *, on_gpu: bool) -> int | None:
        """The number of groups, for Horovod.

        Args:
            size: number of ranks.
            bundles: number of bundles of the update's gradients, from 1.
            on_gpu: True if the gradients are on a GPU.

        Returns:
            A number from 1 to `bundles`; None: each bundle is reduced as soon as it is ready.
        """
        if self.deterministic:
            return 1
        if self.wanted != "auto":
            return min(self.wanted, bundles)
        # On a GPU the reduction runs beside the backward pass. On a CPU it takes cores from it, so that one group costs
        # little and gives equal bits; a pair of ranks has these in any case.
        return None if on_gpu or size == 2 else 1


AUTO = Grouping()
