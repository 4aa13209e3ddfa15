"""The methods, a paper per file: each a docstring with its equations and filled slots."""

from .about import METHODS as METHODS
from .about import About as About
from .about import method as method
from .about import table as table
from .biadam import biadam as biadam
from .biadam import biadam_authors as biadam_authors
from .biadam import biadam_tracked as biadam_tracked
from .ttsa import ttsa as ttsa
from .vr_biadam import vr_biadam as vr_biadam
from .vr_biadam import vr_biadam_authors as vr_biadam_authors
from .vr_biadam import vr_biadam_tracked as vr_biadam_tracked

__all__ = [
    "biadam",
    "biadam_authors",
    "biadam_tracked",
    "ttsa",
    "vr_biadam",
    "vr_biadam_authors",
    "vr_biadam_tracked",
]
