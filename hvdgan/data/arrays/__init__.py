"""Arrays of any shape and type, in files of several kinds, as a source of samples."""
