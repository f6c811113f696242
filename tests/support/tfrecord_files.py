"""TFRecord files as other people write them: six images of noise, with features of any kind."""

import numpy as np
import tensorflow as tf

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


def feature(value):
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(values[0], int):
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def write(path, records, **options):
    with tf.io.TFRecordWriter(str(path), **options) as writer:
        for features in records:
            named = {name: feature(value) for name, value in features.items()}
            writer.write(tf.train.Example(features=tf.train.Features(feature=named)).SerializeToString())
    return path


def png(image):
    return tf.io.encode_png(image).numpy()


def records(**more):
    return [{"image": png(image), "label": number, **more} for number, image in enumerate(IMAGES)]
