"""Figures, panels and sentences of what the other packages return. Nothing here measures."""

from nanoengine.viz.prose import say, show_table, verdict
from nanoengine.viz.theme import setup

__all__ = ["say", "setup", "show_table", "verdict"]
