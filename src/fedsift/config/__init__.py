"""An experiment as TOML <-> pydantic -> parts.

schema  which keys there are, their defaults and checks
read    presets, files and overrides -> an Experiment, and back to TOML
build   an Experiment -> a Federation of plain parts, which never see the config
"""

from fedsift.config.build import Built as Built
from fedsift.config.build import build_algorithm as build_algorithm
from fedsift.config.build import build_clients as build_clients
from fedsift.config.build import build_federation as build_federation
from fedsift.config.build import build_parts as build_parts
from fedsift.config.build import build_task as build_task
from fedsift.config.build import explain_unused as explain_unused
from fedsift.config.build import list_unused as list_unused
from fedsift.config.plugins import check_plugins as check_plugins
from fedsift.config.plugins import check_project_plugins as check_project_plugins
from fedsift.config.plugins import describe_plugins as describe_plugins
from fedsift.config.plugins import list_plugins as list_plugins
from fedsift.config.plugins import tell_plugins as tell_plugins
from fedsift.config.read import check_experiment as check_experiment
from fedsift.config.read import check_keys as check_keys
from fedsift.config.read import differences as differences
from fedsift.config.read import flat as flat
from fedsift.config.read import presets as presets
from fedsift.config.read import read_experiment as read_experiment
from fedsift.config.read import read_toml as read_toml
from fedsift.config.read import read_values as read_values
from fedsift.config.read import resolve_values as resolve_values
from fedsift.config.read import to_toml as to_toml
from fedsift.config.schema import WHERE as WHERE
from fedsift.config.schema import Experiment as Experiment
from fedsift.overrides import SHORT as SHORT
from fedsift.overrides import full_path as full_path
