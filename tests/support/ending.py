"""A recipe whose first stage ends early; tests name it as ending:Ending."""

from hvdgan.recipe.stages import Plateau, Stage
from tiny import Tiny


class Ending(Tiny):
    """Two stages; the first ends when the discriminator's mean logit is steady, which a tiny learning rate makes it."""

    def stages(self):
        (stage,) = super().stages()
        until = Plateau("judge/steady", window=2, patience=2)
        return [
            Stage("first", 40, stage.updates, until=until),
            Stage("second", 3, stage.updates),
        ]

    def judge(self, nets, batch):
        loss, _ = super().judge(nets, batch)
        return loss, {"steady": 1.0}


class EndingOnDistance(Tiny):
    """Its only stage ends when a distance from the real samples no longer falls by 10, which it never does."""

    def stages(self):
        (stage,) = super().stages()
        return [Stage("only", 40, stage.updates, until=Plateau("eval/histogram", window=4, patience=2, min_delta=10.0))]
