"""Settings that say what the data hold: the names of features and arrays, and the maps of their numbers."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from hvdgan.settings.types import Count, Lengths, Words

DATA = Parameter(group=Group("Data", sort_key=3))
_ARRAYS = Parameter(group=Group("Arrays", sort_key=4))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TFRecordConfig:
    """Names of the features in the TFRecords that --data names."""

    image: Annotated[str | None, Parameter(name="--tfrecord-image"), DATA] = None
    """feature that holds the encoded image of a TFRecord; default: image"""
    label: Annotated[str | None, Parameter(name="--tfrecord-label"), DATA] = None
    """feature that holds the class of a TFRecord, an integer; default: no classes"""
    input: Annotated[str | None, Parameter(name="--tfrecord-input"), DATA] = None
    """feature that holds the input of a pair in a TFRecord; default: the left half of the image"""
    shape: Annotated[str | None, Parameter(name="--tfrecord-shape"), DATA] = None
    """height,width,channels or channels,height,width of images that are raw bytes; default: images are encoded. With
    --tfrecord-dtype: shape of the array, channels last: C; H,W; H,W,C or D,H,W,C"""
    dtype: Annotated[str | None, Parameter(name="--tfrecord-dtype"), DATA] = None
    """type of the numbers of an array, such as float32 or int16; they are a list of floats or integers, or raw bytes"""
    input_shape: Annotated[str | None, Parameter(name="--tfrecord-input-shape"), DATA] = None
    """shape of the array that --tfrecord-input names, as in --tfrecord-shape; default: that of the sample"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredConfig:
    """Settings that say what arrays are stored in, and with which conditions beside any data."""

    values: Annotated[str | None, _ARRAYS] = None
    """map of the numbers to those that networks see: none, range:LOW,HIGH (to [-1, 1]), standard (mean 0, deviation 1),
    log1p, log10, sqrt, power:0.85, asinh:SCALE, logit:MARGIN, joined by +; or CHANNEL=MAP;CHANNEL=MAP; default: for
    floats within [0, 1] or [-1, 1], their range"""
    missing: Annotated[str | None, _ARRAYS] = None
    """number that networks see in place of missing ones (NaN): fill:NUMBER, such as fill:0; default: samples with
    missing numbers are left out"""
    axes: Annotated[str | None, _ARRAYS] = None
    """axes of a sample in the array: C (vectors), W, WC, CW (sequences), HW, HWC, CHW, DHW, DHWC or CDHW; default: C,
    HW, HWC or DHWC for 1, 2, 3 or 4 axes"""
    inputs: Annotated[str | None, _ARRAYS] = None
    """array that holds the inputs of a recipe of pairs, of any shape; default: inputs"""
    input_values: Annotated[str | None, _ARRAYS] = None
    """map of the inputs' numbers, as in --values"""
    input_axes: Annotated[str | None, _ARRAYS] = None
    """axes of an input, as in --axes"""
    arrays: Annotated[Words, _ARRAYS] = ()
    """further arrays of each sample, of any shape, such as map,mask; losses read them from batch.arrays"""
    values_of: Annotated[str | None, _ARRAYS] = None
    """maps of the numbers of --arrays, NAME=MAP;NAME=MAP, each as in --values or onehot:CLASSES; default: none, if the
    numbers lie within [-1, 1]"""
    axes_of: Annotated[str | None, _ARRAYS] = None
    """axes of --arrays, NAME=AXES;NAME=AXES, each as in --axes"""
    constants: Annotated[str | None, _ARRAYS] = None
    """array of fields that all samples share, such as the height of the ground; as high and wide as a sample"""
    constant_values: Annotated[str | None, _ARRAYS] = None
    """map of the numbers of --constants, as in --values"""
    conditions: Annotated[Words, _ARRAYS] = ()
    """arrays, or columns of --condition-table, with numbers that describe each sample"""
    condition_table: Annotated[Path | None, _ARRAYS] = None
    """CSV with a header and a row per sample; one column, of any name, holds the samples' paths, with or without
    folders and suffix"""
    condition_order: Annotated[Literal["names", "rows"] | None, _ARRAYS] = None
    """names: each row belongs to the sample that it names; rows: the rows are in the order of the samples; default:
    names, and rows for samples without names, such as those in one array"""
    condition_values: Annotated[str | None, _ARRAYS] = None
    """map of the conditions, as in --values; default: standard"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayConfig(StoredConfig):
    """The same, with the part of each sample that networks see."""

    crop: Annotated[Lengths, _ARRAYS] = ()
    """height,width or depth,height,width, or one number for all, of the part of each sample that networks see: a random
    part in training, the centre in evaluations and grids; default: the whole sample"""
    segment: Annotated[Count | None, _ARRAYS] = None
    """samples in the part of each wave file that networks see: a random part in training, the middle in evaluations and
    grids"""
    flip_axes: Annotated[Words, _ARRAYS] = ()
    """axes along which each sample is mirrored with probability 1/2, anew in each step: depth, height, width"""
