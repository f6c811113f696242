"""The GAN of my_gan.py in two stages: --recipe my_stages:MyStages --data digits --image-size 16"""

import dataclasses

from my_gan import MyGAN, MyOptions

from hvdgan.recipe import Count, Schedule, Stage, Update


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagesOptions(MyOptions):
    """Those of my_gan.py, and one more."""

    warmup_steps: Count = 100
    """steps of the first stage, which trains the discriminator alone"""


class MyStages(MyGAN):
    """The discriminator is trained alone first, then both networks, with rates that decay to zero."""

    Options = StagesOptions

    def stages(self):
        decay = Schedule(self.options.learning_rate, 0)
        alone = Update("judge", owns=["discriminator"], loss=self.judge)
        both = [
            Update("judge", owns=["discriminator"], loss=self.judge, learning_rate=decay),
            Update("fool", owns=["generator"], loss=self.fool, learning_rate=decay),
        ]
        return [Stage("warmup", self.options.warmup_steps, [alone]), Stage("both", self.options.steps, both)]
