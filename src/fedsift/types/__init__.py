"""What flows: samples, work, soft labels, rounds. Frozen dataclasses, no behaviour beyond views of
themselves.

Shapes in comments: N public samples, n private samples, m chosen samples, C classes.
"""

from fedsift.types.algorithms import Algorithm as Algorithm
from fedsift.types.algorithms import Attackable as Attackable
from fedsift.types.algorithms import Forgets as Forgets
from fedsift.types.algorithms import GoesThroughEdges as GoesThroughEdges
from fedsift.types.algorithms import KeepsSecret as KeepsSecret
from fedsift.types.algorithms import LabelAnswer as LabelAnswer
from fedsift.types.algorithms import PeerToPeer as PeerToPeer
from fedsift.types.algorithms import SharesLabels as SharesLabels
from fedsift.types.algorithms import WeightAnswer as WeightAnswer
from fedsift.types.basics import ESTIMATOR as ESTIMATOR
from fedsift.types.basics import NETWORK as NETWORK
from fedsift.types.basics import REMOTE as REMOTE
from fedsift.types.basics import Array as Array
from fedsift.types.basics import Model as Model
from fedsift.types.basics import ModelFailure as ModelFailure
from fedsift.types.basics import Tree as Tree
from fedsift.types.basics import UserError as UserError
from fedsift.types.basics import Weights as Weights
from fedsift.types.parties import Client as Client
from fedsift.types.parties import Draws as Draws
from fedsift.types.parties import Link as Link
from fedsift.types.parties import Round as Round
from fedsift.types.parties import Server as Server
from fedsift.types.parties import Verdict as Verdict
from fedsift.types.recipes import AUGMENTATIONS as AUGMENTATIONS
from fedsift.types.recipes import OPTIMIZERS as OPTIMIZERS
from fedsift.types.recipes import Recipe as Recipe
from fedsift.types.recipes import list_problems as list_problems
from fedsift.types.recipes import option as option
from fedsift.types.samples import Labelled as Labelled
from fedsift.types.samples import LabelSums as LabelSums
from fedsift.types.samples import Samples as Samples
from fedsift.types.samples import SoftLabels as SoftLabels
from fedsift.types.samples import Store as Store
from fedsift.types.work import Engine as Engine
from fedsift.types.work import Fit as Fit
from fedsift.types.work import Predict as Predict
from fedsift.types.work import Pretext as Pretext
from fedsift.types.work import Pretrain as Pretrain
from fedsift.types.work import R as R
from fedsift.types.work import Snapshot as Snapshot
from fedsift.types.work import Turn as Turn
from fedsift.types.work import Work as Work
