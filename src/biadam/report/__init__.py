"""Figures of what runs wrote; nothing of the library imports this."""

from .figures import figure as figure
