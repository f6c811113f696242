"""Refuses a global batch that the ranks, their micro-batches and the packs of a recipe cannot share."""

from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import UserError
from hvdgan.recipe.recipe import Recipe
from hvdgan.recipe.recipe_errors import check, described
from hvdgan.settings.config import Config


def check_batch(config: Config, recipe: Recipe | type[Recipe], size: int) -> Ranks:
    """Refuse a global batch that this many ranks cannot share; returns the first of them."""
    ranks = Ranks(size=size)
    check_micro_batches(ranks, config)
    check_packs(ranks, config, recipe)
    return ranks


def check_packs(ranks: Ranks, config: Config, recipe: Recipe | type[Recipe]) -> None:
    """Refuse a slice of the global batch that the recipe's losses cannot cut into packs."""
    fits = isinstance(recipe.pack, int) and recipe.pack > 0
    check(fits, f"pack is {described(recipe.pack)}; it must be a number of samples, as in pack = 4")
    first, past = ranks.slice_of(config.global_batch_size)
    if (count := (past - first) // config.accumulate) % recipe.pack:
        unit = ranks.size * config.accumulate * recipe.pack
        where = "rank's" if config.accumulate == 1 else "micro-batch's"
        raise UserError(
            f"--global-batch-size {config.global_batch_size}: a {where} {count} samples cannot be cut into packs of "
            f"{recipe.pack}; take a multiple of {unit}"
        )


def check_micro_batches(ranks: Ranks, config: Config) -> None:
    """Refuse a slice of the global batch that --accumulate cannot cut."""
    first, past = ranks.slice_of(config.global_batch_size)
    if (past - first) % config.accumulate:
        raise UserError(
            f"--accumulate {config.accumulate}: a rank's {past - first} images of each global batch of "
            f"{config.global_batch_size} cannot be cut into {config.accumulate} equal micro-batches"
        )
