"""A federation and its round loop. `federate` yields one record per round.

clients      who takes part: private data and a model each
rounds       all that is fixed for a run, and one round of it
hostility    what hostile clients do in a simulated round
uploads      what came from the clients, and how the server reads it
server_half  the server's half of a round: its turn, then the test
records      what survives a round, and what is told of it
loop         from the first weights to the last round
"""

from fedsift.federation.clients import ClientModels as ClientModels
from fedsift.federation.clients import Clients as Clients
from fedsift.federation.clients import ModelLike as ModelLike
from fedsift.federation.clients import assign_models as assign_models
from fedsift.federation.clients import make_clients as make_clients
from fedsift.federation.clients import make_student as make_student
from fedsift.federation.loop import federate as federate
from fedsift.federation.loop import start_federations as start_federations
from fedsift.federation.records import FederationState as FederationState
from fedsift.federation.records import Record as Record
from fedsift.federation.records import build_network as build_network
from fedsift.federation.records import choose_model as choose_model
from fedsift.federation.records import load_weights as load_weights
from fedsift.federation.rounds import Federation as Federation
from fedsift.federation.server_half import Useless as Useless
from fedsift.federation.uploads import ClientResults as ClientResults
from fedsift.federation.uploads import NothingUsable as NothingUsable
