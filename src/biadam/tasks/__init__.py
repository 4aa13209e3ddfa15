"""Problems with their data, ready to run."""

from .base import Reference as Reference
from .base import Task as Task
from .hyper_cleaning import hyper_cleaning as hyper_cleaning
from .quadratic import Quadratic as Quadratic
from .ridge import Budget as Budget
from .ridge import ridge as ridge
from .selection import selection as selection
