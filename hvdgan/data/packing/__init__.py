"""From images of any kind to packed shards: what python -m hvdgan.prepare does, without TensorFlow and Horovod."""
