"""The methods, a paper per file: each a docstring with its equations and filled slots."""

from .about import METHODS as METHODS
from .about import About as About
from .about import method as method
from .about import table as table
from .adambo import adambo as adambo
from .aid import aid_cg as aid_cg
from .aid import aid_fp as aid_fp
from .alset import alset as alset
from .amigo import amigo as amigo
from .biadam import biadam as biadam
from .biadam import biadam_authors as biadam_authors
from .biadam import biadam_tracked as biadam_tracked
from .bo_rep import bo_rep as bo_rep
from .bome import bome as bome
from .bsa import bsa as bsa
from .f2ba import f2ba as f2ba
from .f2sa import f2sa as f2sa
from .fsla import fsla as fsla
from .fsla import fsla_plain as fsla_plain
from .ma_soba import ma_soba as ma_soba
from .mrbo import mrbo as mrbo
from .mstsa import mstsa as mstsa
from .newton_cg import newton_cg as newton_cg
from .pbgd import pbgd_gradient as pbgd_gradient
from .pbgd import pbgd_value as pbgd_value
from .reverse import reverse as reverse
from .saba import saba as saba
from .slip import slip as slip
from .smb import smb as smb
from .soba import soba as soba
from .srba import srba as srba
from .stable import stable as stable
from .stocbio import stocbio as stocbio
from .sustain import sustain as sustain
from .svrb import svrb as svrb
from .tfbo import d_tfbo as d_tfbo
from .tfbo import s_tfbo as s_tfbo
from .ttsa import ttsa as ttsa
from .vr_biadam import vr_biadam as vr_biadam
from .vr_biadam import vr_biadam_authors as vr_biadam_authors
from .vr_biadam import vr_biadam_tracked as vr_biadam_tracked
from .vrbo import vrbo as vrbo

__all__ = [
    "adambo",
    "aid_cg",
    "aid_fp",
    "alset",
    "amigo",
    "biadam",
    "biadam_authors",
    "biadam_tracked",
    "bo_rep",
    "bome",
    "bsa",
    "d_tfbo",
    "f2ba",
    "f2sa",
    "fsla",
    "fsla_plain",
    "ma_soba",
    "mrbo",
    "mstsa",
    "newton_cg",
    "pbgd_gradient",
    "pbgd_value",
    "reverse",
    "s_tfbo",
    "saba",
    "slip",
    "smb",
    "soba",
    "srba",
    "stable",
    "stocbio",
    "sustain",
    "svrb",
    "ttsa",
    "vr_biadam",
    "vr_biadam_authors",
    "vr_biadam_tracked",
    "vrbo",
]
