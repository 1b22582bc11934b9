"""Trackers: the figures of a run, round by round, where other tools show them.

A tracker gets what is on disk already, so it can neither change a run nor stop it. What it has
been told is kept in tracking.json of the run folder: a resumed run goes on without repeats.
"""

from fedsift.tracking.figures import FIGURES as FIGURES
from fedsift.tracking.figures import list_figures as list_figures
from fedsift.tracking.follower import TRACKING as TRACKING
from fedsift.tracking.follower import Follower as Follower
from fedsift.tracking.follower import check_names as check_names
from fedsift.tracking.trackers import TRACKERS as TRACKERS
from fedsift.tracking.trackers import Place as Place
from fedsift.tracking.trackers import Tracker as Tracker
