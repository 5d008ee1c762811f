"""Batches of examples: of arrays in memory, of files, and of other iterators."""

from .arrays import NDArrayIter
from .base import DataBatch, DataDesc, DataIter
from .combined import PrefetchingIter, ResizeIter
from .files import CSVIter, ImageRecordIter, ImageRecordUInt8Iter, LibSVMIter, MNISTIter

__all__ = [
    "CSVIter",
    "DataBatch",
    "DataDesc",
    "DataIter",
    "ImageRecordIter",
    "ImageRecordUInt8Iter",
    "LibSVMIter",
    "MNISTIter",
    "NDArrayIter",
    "PrefetchingIter",
    "ResizeIter",
]
