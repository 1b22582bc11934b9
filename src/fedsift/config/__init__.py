"""An experiment as TOML <-> pydantic -> parts.

schema  which keys there are, their defaults and checks
read    presets, files and overrides -> an Experiment, and back to TOML
build   an Experiment -> a Federation of plain parts, which never see the config
"""

from fedsift.config.build import algorithm as algorithm
from fedsift.config.build import build_federation as build_federation
from fedsift.config.build import resolved as resolved
from fedsift.config.build import unused as unused
from fedsift.config.read import check_experiment as check_experiment
from fedsift.config.read import check_keys as check_keys
from fedsift.config.read import differences as differences
from fedsift.config.read import flat as flat
from fedsift.config.read import presets as presets
from fedsift.config.read import read_experiment as read_experiment
from fedsift.config.read import read_values as read_values
from fedsift.config.read import to_toml as to_toml
from fedsift.config.schema import WHERE as WHERE
from fedsift.config.schema import Experiment as Experiment
from fedsift.overrides import SHORT as SHORT
from fedsift.overrides import full_path as full_path
