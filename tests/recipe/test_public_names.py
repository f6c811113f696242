"""The names that a recipe's file imports from hvdgan.recipe."""

import hvdgan.recipe


def test_the_public_names():
    assert hvdgan.recipe.__all__ == [
        *("Batch", "Count", "CountOrNever", "DataSpec", "Decay", "Fraction", "LearningRate", "Loss", "Nets"),
        *("NoOptions", "NonNegative", "Plateau", "Positive", "Random", "Recipe", "Seed", "Stage", "Update"),
        *("UserError", "Words", "losses", "measures"),
    ]
    assert all(hasattr(hvdgan.recipe, name) for name in hvdgan.recipe.__all__)
