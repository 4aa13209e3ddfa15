"""Problems with their data, ready to run."""

from .base import Reference as Reference
from .base import Task as Task
from .hyper_cleaning import hyper_cleaning as hyper_cleaning
from .hyper_representation import class_groups as class_groups
from .hyper_representation import few_shot_task as few_shot_task
from .hyper_representation import fresh_tasks as fresh_tasks
from .learned import Learned as Learned
from .quadratic import Quadratic as Quadratic
from .ridge import Budget as Budget
from .ridge import ridge as ridge
from .selection import selection as selection
from .weights import FreeWeights as FreeWeights
from .weights import WeightFunction as WeightFunction
