"""Reads the records of TFRecord files that other programs wrote."""
