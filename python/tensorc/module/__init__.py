"""Networks that learn from batches: one of one size, and several that share parameters."""

from .base import BaseModule
from .bucketing import BucketingModule
from .module import Module

__all__ = ["BaseModule", "BucketingModule", "Module"]
