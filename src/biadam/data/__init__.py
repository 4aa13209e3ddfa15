"""Where the noise comes from: sources of samples, and loaders of real data."""

from .blocks import Blocks as Blocks
from .blocks import as_blocks as as_blocks
from .sources import AbstractSource as AbstractSource
from .sources import FullBatch as FullBatch
from .sources import Minibatches as Minibatches
