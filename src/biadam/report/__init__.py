"""Figures of what runs wrote; nothing of the library imports this."""

from .html import page as page
from .paper import figures as figures
from .single import figure as figure
