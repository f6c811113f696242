"""The schedules that docs/recipes.md shows, as schedules:Shown."""

from hvdgan.recipe import Schedule, Stage, Update, losses
from tiny import Tiny

rates = [
    Schedule(2e-4, 0),  # linear, from the stage's first step to its last
    Schedule(2e-4, 5e-5, "cosine", warmup_steps=500),  # grows to 2e-4 first; hold_steps=1000 would keep it there
    Schedule(2e-4, kind="exponential", factor=0.999, epochs=1),  # times 0.999 after each epoch of the data
    Schedule(1e-3, kind="exponential", factor=0.1, every=30_000),
]


class Shown(Tiny):
    """Two stages, of which the first names a value that a loss reads."""

    def networks(self):
        generator, critic = super().networks().values()
        return {"generator": generator, "critic": critic}

    def optimizers(self):
        generator, critic = super().optimizers().values()
        return {"generator": generator, "critic": critic}

    def stages(self):
        fool = Update("fool", owns=["generator"], loss=self.fool, learning_rate=rates[2])
        rate, betas = Schedule(2e-4, 5e-5, "cosine"), (0.0, Schedule(0.9, 0.99, "cosine"))
        judge = Update("judge", owns=["critic"], loss=self.judge, learning_rate=rate, betas=betas)
        return [
            Stage("burn_in", 500, [judge, fool], schedules={"gp_weight": Schedule(10, 1)}),
            Stage("rest", 1500, [judge, fool]),
        ]

    def judge(self, nets, batch):
        real, fake = nets.critic(batch.images), nets.critic(nets.generator(batch.latents))
        penalty = batch.schedule("gp_weight") * losses.r1(nets.critic, batch.images)
        return losses.non_saturating_discriminator(real, fake) + penalty, {"weight": batch.schedule("gp_weight")}

    def fool(self, nets, batch):
        return losses.non_saturating_generator(nets.critic(nets.generator(batch.latents))), {}
