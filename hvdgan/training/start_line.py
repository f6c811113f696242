"""What the start of a run is doing, on the last line of the terminal, which is wiped out when the run begins."""

import contextlib
import sys
from collections.abc import Iterator

from tqdm import tqdm

from hvdgan.distributed.ranks import Ranks


@contextlib.contextmanager
def shown(ranks: Ranks) -> Iterator[None]:
    """Show on rank 0 what the block does, if a person looks: standard error is a terminal."""
    hidden = None if ranks.is_root else True  # None: where there is no terminal
    with tqdm(
        desc="starting",
        file=sys.stderr,
        bar_format="{desc} ({elapsed})",
        dynamic_ncols=True,
        leave=False,
        disable=hidden,
    ) as line:
        ranks.activity.doing = line.set_description_str
        try:
            yield
        finally:
            ranks.activity.doing = lambda what: None
