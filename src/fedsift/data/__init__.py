"""Data sets: the digits, published ones, files and functions of your own.

dataset        a data set as arrays
loading        a data set by its name; known, arrays, sources and image_folders read it
published      what is known of a published one; catalogue, download and packages get it
task           its split into parts that never overlap
public_images  public images from elsewhere
new_samples    samples without labels for a trained model
"""

from fedsift.data.catalogue import CLASS_NAMES as CLASS_NAMES
from fedsift.data.dataset import Dataset as Dataset
from fedsift.data.dataset import make_dataset as make_dataset
from fedsift.data.known import BUNDLED as BUNDLED
from fedsift.data.known import DATASETS as DATASETS
from fedsift.data.known import IMAGE_SETS as IMAGE_SETS
from fedsift.data.known import digits as digits
from fedsift.data.loading import NOTHING as NOTHING
from fedsift.data.loading import SCHEMES as SCHEMES
from fedsift.data.loading import load_dataset as load_dataset
from fedsift.data.new_samples import load_inputs as load_inputs
from fedsift.data.public_images import add_public as add_public
from fedsift.data.public_images import load_unlabelled as load_unlabelled
from fedsift.data.ranges import compare_inputs as compare_inputs
from fedsift.data.rows import TEST as TEST
from fedsift.data.rows import VALIDATION as VALIDATION
from fedsift.data.task import NORMALISATIONS as NORMALISATIONS
from fedsift.data.task import Task as Task
from fedsift.data.task import split as split
