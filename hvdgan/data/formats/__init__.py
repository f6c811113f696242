"""The formats of files: images and TFRecords."""
