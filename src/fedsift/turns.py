"""The driver: many turns advanced in lockstep, with all their work handed to an engine at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic

from fedsift.types import Engine, Fit, ModelFailure, Pretrain, R, Turn

Asked = Mapping[int, list[Any]]  # work by turn


def batch_turns(turns: Sequence[Turn[Any]]) -> Turn[list[Any]]:
    """Many turns as one: advance them in lockstep and ask for all their work at once.

    A turn yields one piece of work or a list of them. The result is itself such a turn, so cohorts
    nest in rounds and rounds in sweeps. It returns what the turns returned. A ModelFailure that
    answers one piece of work is thrown into the turn; in a list of answers it is handed on.

    turns: generators that yield `Fit`, `Predict` or lists of them
    """
    returned: dict[int, Any] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(turns)))
    while answers:
        asked = _advance(turns, answers, returned)
        for outcome in returned.values():
            if isinstance(outcome, Exception):
                raise outcome
        if not asked:
            break
        done = iter((yield [job for work in asked.values() for job in _as_list(work)]))
        answers = {
            i: [next(done) for _ in work] if isinstance(work, list) else next(done)
            for i, work in asked.items()
        }
    return [returned[i] for i in range(len(turns))]


def watch_turn(
    turn: Turn[R],
    see: Callable[[Any], None],
    hear: Callable[[Any, Any], None] | None = None,
) -> Turn[R]:
    """The same turn; `see` gets every piece of work that it asks for, `hear` also its answer."""
    resume: Callable[[], Any] = partial(next, turn)
    while True:
        try:
            work = resume()
        except StopIteration as end:
            returned: R = end.value
            return returned
        for job in _as_list(work):
            see(job)
        try:
            answer = yield work
            if hear is not None:
                answers = answer if isinstance(work, list) else [answer]
                for job, one in zip(_as_list(work), answers, strict=True):
                    hear(job, one)
            resume = partial(turn.send, answer)
        except Exception as error:  # the turn may know what to do about it
            resume = partial(turn.throw, error)


@dataclass(frozen=True)
class Missing:
    """What a turn returns whose model has failed."""

    why: str


def try_turn(turn: Turn[R]) -> Turn[R | Missing]:
    """The same turn; one whose model fails ends with the reason."""
    try:
        return (yield from turn)
    except ModelFailure as failure:
        return Missing(f"its model failed: {failure}")


def run_turn(turn: Turn[R], engine: Engine) -> R:
    """Run one turn to its end on an engine; what it returned."""
    (outcome,) = run_turns([turn], engine)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def run_turns(turns: Sequence[Turn[R]], engine: Engine) -> list[R | Exception]:
    """Run turns in lockstep. One that fails fails alone: its exception stands for its result.

    Training waits until every turn asks for some: an engine trains many networks at once for little
    more than a few.
    """
    lane = Lane(turns)
    work = lane.begin()
    while work:
        work = lane.advance(answer(work, engine))
    return lane.outcomes()


class Lane(Generic[R]):
    """Turns that advance in lockstep: what they ask for comes out, the answers go in."""

    def __init__(self, turns: Sequence[Turn[R]]) -> None:
        self._groups = [batch_turns([turn]) for turn in turns]
        self._ended: dict[int, Any] = {}
        self._asked: dict[int, list[Any]] = {}

    def begin(self) -> Asked:
        """As `advance`, from the start."""
        return self.advance(dict.fromkeys(range(len(self._groups))))

    def advance(self, answers: Mapping[int, Any]) -> Asked:
        """The work that is to be done next, by turn; empty when all have ended."""
        self._asked |= _advance(self._groups, answers, self._ended)
        asked = self._asked
        ready = [i for i, jobs in asked.items() if not any(map(_is_training, jobs))] or list(asked)
        return {i: asked.pop(i) for i in sorted(ready)}

    def outcomes(self) -> list[R | Exception]:
        """What each turn returned, or its exception."""
        found = (self._ended[i] for i in range(len(self._groups)))
        return [one if isinstance(one, Exception) else one[0] for one in found]


def _advance(
    turns: Sequence[Turn[Any]], answers: Mapping[int, Any], ended: dict[int, Any]
) -> dict[int, Any]:
    """Send each turn its answer, or throw its error; what each asks for next.

    A turn that ends goes to `ended` with its result or its exception.
    """
    asked: dict[int, Any] = {}
    for i, answer in answers.items():
        try:
            failed = isinstance(answer, Exception)
            asked[i] = turns[i].throw(answer) if failed else turns[i].send(answer)
        except StopIteration as end:
            ended[i] = end.value
        except Exception as error:
            ended[i] = error
    return asked


def answer(asked: Asked, engine: Engine) -> dict[int, Any]:
    """All work at once. If that fails, each turn's alone, to find the faulty one: jobs are pure."""
    if not asked:
        return {}
    try:
        done = iter(engine.run([job for jobs in asked.values() for job in jobs]))
        return {i: list(islice(done, len(jobs))) for i, jobs in asked.items()}
    except Exception as error:
        if len(asked) == 1:
            return dict.fromkeys(asked, error)
    return {i: found for i, jobs in asked.items() for found in answer({i: jobs}, engine).values()}


def _is_training(job: Any) -> bool:
    return isinstance(job, Fit | Pretrain)


def _as_list(work: Any) -> list[Any]:
    return work if isinstance(work, list) else [work]
