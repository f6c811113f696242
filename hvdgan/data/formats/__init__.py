"""The formats of files: images, TFRecords and their index, packed shards."""
