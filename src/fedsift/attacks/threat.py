"""Which clients are hostile, and what becomes of their turns in a simulated round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fedsift import registry, seeding
from fedsift.attacks.scene import DATA, LABELS, WEIGHTS, Attack, Scene, altered_part
from fedsift.checks import check_number, describe
from fedsift.turns import batch_turns
from fedsift.types import (
    Array,
    Attackable,
    Client,
    LabelAnswer,
    Labelled,
    Round,
    Turn,
    UserError,
    WeightAnswer,
)

PARTS = {LABELS: LabelAnswer, WEIGHTS: WeightAnswer, DATA: Labelled}


@lru_cache(maxsize=64)
def hostile_clients(seed: int, clients: int, share: float) -> frozenset[int]:
    """The same ones for every attack: a function of the seed alone."""
    count = round(share * clients)
    return frozenset(seeding.subset(seeding.rng(seed, "attackers"), clients, count).tolist())


@dataclass(frozen=True, eq=False)
class Threat:
    """An attack, and the share of the clients that carry it out."""

    name: str
    attack: Attack
    share: float

    def __post_init__(self) -> None:
        check_number("attackers", self.share)
        if not 0 <= self.share < 1:
            raise UserError(
                f"attackers is a share of the clients, from 0 to below 1, not {self.share}"
            )
        if altered_part(self.attack) not in PARTS:
            known = ", ".join(PARTS)
            raise UserError(f"attack {self.name!r}: alters must be one of {known}")

    def hostile(self, seed: int, clients: int) -> frozenset[int]:
        return hostile_clients(seed, clients, self.share)

    @property
    def alters_answers(self) -> bool:
        return altered_part(self.attack) != DATA

    @property
    def sees_student(self) -> bool:
        return bool(getattr(self.attack, "sees_student", False))

    def check_fits(self, algorithm: Any, r: Round) -> None:
        """Refuse an algorithm that does not upload what the attack alters, or too small a share."""
        if self.share and not round(self.share * r.population):
            raise UserError(
                f"attackers={self.share:g} of {r.population} clients is nobody; give at least"
                f" {1 / r.population:.2g}"
            )
        part = altered_part(self.attack)
        if part == DATA:
            return
        uploads = algorithm.answer_type(r) if isinstance(algorithm, Attackable) else None
        if uploads is None or not issubclass(uploads, PARTS[part]):
            does = _UPLOADS.get(uploads, "does not say how its uploads can be altered")
            raise UserError(
                f"attack {self.name!r} alters {part}, but this algorithm {does}; choose another"
                " (fedsift ls attacks)"
            )

    def poison(self, client: Client, r: Round) -> Client:
        """A hostile client with the data that it trains on."""
        if self.alters_answers:
            return client
        data = self._call(client.data, Scene(client, r))
        return replace(client, data=data)

    def alter_turn(
        self,
        algorithm: Attackable,
        cohort: Mapping[int, Client],
        answers: Mapping[int, Any],
        listen: Callable[[], dict[int, Any]],
        r: Round,
    ) -> Turn[dict[int, tuple[Any, bytes]]]:
        """Memory and upload of each hostile client of a round, its answer altered."""
        looking = answers if self.sees_student else {}
        seen = yield from batch_turns(
            [algorithm.student_turn(cohort[id], answer, r) for id, answer in looking.items()]
        )
        students = dict(zip(looking, seen, strict=True))
        altered = self.alter(cohort, answers, listen, students, r)
        try:
            return {id: algorithm.encode_answer(cohort[id], a, r) for id, a in altered.items()}
        except UserError as error:
            raise UserError(f"attack {self.name!r} cannot be encoded: {error}") from None

    def alter(
        self,
        cohort: Mapping[int, Client],
        answers: Mapping[int, Any],
        listen: Callable[[], dict[int, Any]],
        students: Mapping[int, Array],
        r: Round,
    ) -> dict[int, Any]:
        """The answers of the hostile clients of a round, altered.

        `students` are the predictions of the models that they received, where the attack sees them.
        """
        first = next(iter(cohort.values()))
        scene = Scene(first, r, tuple(answers), len(cohort), answers, listen)

        def of(id: int) -> Scene:
            student = students.get(id)
            return replace(scene, client=cohort[id], student=student, listen=lambda: scene.honest)

        return {id: self._call(answer, of(id)) for id, answer in answers.items()}

    def _call(self, answer: Any, scene: Scene) -> Any:
        altered = self.attack(answer, scene)
        wanted = PARTS[altered_part(self.attack)]
        if not isinstance(altered, wanted):
            raise UserError(
                f"attack {self.name!r} returned {describe(altered)}; it must return the altered"
                f" {wanted.__name__}"
            )
        return altered


_UPLOADS: dict[Any, str] = {LabelAnswer: "uploads labels", WeightAnswer: "uploads weights"}


def read_threat(
    entries: Mapping[str, Any], attack: str | Attack | None, attackers: float | None
) -> Threat | None:
    """What `attack` and `attackers` of a config or of `federate` mean."""
    if attack is None:
        if attackers:
            raise UserError(
                f"attackers={attackers:g} needs an attack, such as attack=wrong (fedsift ls"
                " attacks)"
            )
        return None
    name = attack if isinstance(attack, str) else getattr(attack, "__name__", repr(attack))
    if attackers is None:
        raise UserError(f"attack={name} needs the share of hostile clients, such as attackers=0.2")
    return Threat(name, registry.resolve(entries, "attack", attack), attackers)
