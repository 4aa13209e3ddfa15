"""Fair comparisons: every method tuned alike, blind to the test split, then run on fresh seeds."""

from .budget import OracleCalls as OracleCalls
from .budget import Samples as Samples
from .budget import Seconds as Seconds
from .groups import GROUPS as GROUPS
from .groups import chosen as chosen
from .recipe import Recipe as Recipe
from .referee import Comparison as Comparison
from .referee import compare as compare
from .summary import Row as Row
