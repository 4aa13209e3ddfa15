"""Where the noise comes from: sources of samples, and loaders of real data."""

from .blocks import Blocks as Blocks
from .blocks import as_blocks as as_blocks
from .episodes import Episodes as Episodes
from .episodes import Groups as Groups
from .episodes import OnDevice as OnDevice
from .episodes import OnHost as OnHost
from .episodes import evaluation_episodes as evaluation_episodes
from .sources import AbstractSource as AbstractSource
from .sources import FullBatch as FullBatch
from .sources import Minibatches as Minibatches
