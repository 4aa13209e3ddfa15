"""Sets of methods that are compared with each other."""

from .. import solvers
from ..errors import unknown

PAPER = (
    "reverse",
    "aid_cg",
    "aid_fp",
    "stocbio",
    "mrbo",
    "vrbo",
    "fsla",
    "fsla_plain",
    "mstsa",
    "sustain",
    "smb",
    "svrb",
    "stable",
    "bsa",
    "ttsa",
    "biadam",
    "vr_biadam",
    "biadam_authors",
    "vr_biadam_authors",
)
MODERN = (
    "soba",
    "ma_soba",
    "saba",
    "srba",
    "slip",
    "amigo",
    "adambo",
    "alset",
    "bo_rep",
    "f2sa",
    "f2ba",
    "bome",
    "pbgd_value",
    "pbgd_gradient",
    "s_tfbo",
    "d_tfbo",
)
RECOMMENDED = ("biadam_tracked", "vr_biadam_tracked")
REFERENCE = ("newton_cg",)  # deterministic

GROUPS = {
    "all": tuple(solvers.__all__),
    "paper": PAPER,
    "modern": MODERN,
    "recommended": RECOMMENDED,
    "reference": REFERENCE,
}


def chosen(names: str) -> list[str]:
    """The methods that a comma-separated list of groups and methods names."""
    wanted: dict[str, None] = {}
    for name in (part.strip() for part in names.split(",")):
        if name not in GROUPS and name not in solvers.__all__:
            raise unknown("solver", name, [*solvers.__all__, *GROUPS])
        wanted.update(dict.fromkeys(GROUPS.get(name, (name,))))
    return list(wanted)
