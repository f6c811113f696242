"""A recipe of completion whose network sees the whole image."""

import keras
from keras import layers

from hvdgan.recipes.completion import Completion


class Pooled(Completion):
    def networks(self):
        images, mask = (keras.Input((*self.data.shape[:2], n)) for n in (self.data.channels, 1))
        x = layers.Conv2D(2, 3, padding="same")(layers.Concatenate()([images * (1.0 - mask), mask]))
        x = x * layers.GlobalAveragePooling2D(keepdims=True, name="pooled")(x)
        completed = layers.Conv2D(self.data.channels, 3, padding="same")(x)
        return {**super().networks(), "completion": keras.Model([images, mask], completed)}
