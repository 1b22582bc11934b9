"""A run is a folder that explains itself and can be killed at any moment.

    config.toml             every value of the experiment
    environment.json        versions, machine, command, and the format of the folder
    clients.json            model and labels of clients
    data.json               sizes and a digest of the data
    metrics.jsonl           one line per round
    ledger.jsonl            bytes per round, direction and client
    timing.jsonl            seconds per round
    recording.jsonl         some of what was said in each round, for the report
    samples.json            some public samples, to be looked at
    checkpoint.safetensors  all that survives a round
    best.safetensors        the models of the best round, by validation samples
    failed.json             why a run stopped, until it is resumed
    finished.json           in the place of a checkpoint that was deleted

`run` executes and saves, `history` reads, `group` runs many side by side, `export` hands a trained
model on.
"""

from fedsift.checkpoints import from_bytes as from_bytes
from fedsift.checkpoints import to_bytes as to_bytes
from fedsift.environment import environment as environment
from fedsift.runs.folder import BEST as BEST
from fedsift.runs.folder import CHECKPOINT as CHECKPOINT
from fedsift.runs.folder import CLIENTS as CLIENTS
from fedsift.runs.folder import CONFIG as CONFIG
from fedsift.runs.folder import DATA as DATA
from fedsift.runs.folder import ENVIRONMENT as ENVIRONMENT
from fedsift.runs.folder import FAILED as FAILED
from fedsift.runs.folder import FORMAT as FORMAT
from fedsift.runs.folder import LEDGER as LEDGER
from fedsift.runs.folder import LOCK as LOCK
from fedsift.runs.folder import METRICS as METRICS
from fedsift.runs.folder import OURS as OURS
from fedsift.runs.folder import RECORDING as RECORDING
from fedsift.runs.folder import SAMPLES as SAMPLES
from fedsift.runs.folder import SWEEP as SWEEP
from fedsift.runs.folder import TIMING as TIMING
from fedsift.runs.folder import is_blank as is_blank
from fedsift.runs.group import Group as Group
from fedsift.runs.group import is_finished_as as is_finished_as
from fedsift.runs.history import History as History
from fedsift.runs.history import blame_version as blame_version
from fedsift.runs.history import drop_model as drop_model
from fedsift.runs.history import find_runs as find_runs
from fedsift.runs.history import has_a_round as has_a_round
from fedsift.runs.history import is_finished as is_finished
from fedsift.runs.history import load_run as load_run
from fedsift.runs.history import read_config as read_config
from fedsift.runs.history import resume_command as resume_command
from fedsift.runs.recording import Recording as Recording
from fedsift.runs.recording import read_recording as read_recording
from fedsift.runs.run import Built as Built
from fedsift.runs.run import Run as Run
from fedsift.runs.run import begin_run as begin_run
from fedsift.runs.run import build as build
from fedsift.runs.run import changed_settings as changed_settings
from fedsift.runs.run import check_code as check_code
from fedsift.runs.run import check_new as check_new
from fedsift.runs.run import fingerprint_task as fingerprint_task
from fedsift.runs.states import best_state as best_state
from fedsift.runs.states import describe_error as describe_error
from fedsift.runs.states import last_state as last_state
from fedsift.runs.states import rounds_played as rounds_played
