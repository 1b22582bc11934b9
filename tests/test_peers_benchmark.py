"""benchmarks/peers.py as far as it goes without the peers: what becomes a row, and all cases."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture
def peers(monkeypatch):
    """The script, with two clients that train the small CNN."""
    monkeypatch.setenv("PEERS_MODEL", "cnn")
    monkeypatch.setenv("PEERS_CLIENTS", "2")
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "peer_rounds", raising=False)
    spec = importlib.util.spec_from_file_location("peers_benchmark", FOLDER / "peers.py")
    assert spec and spec.loader
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclass looks there
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("peer_rounds", None)


def moved(peers, by=1.0):
    return {name: value + by * torch.ones_like(value) for name, value in peers.start().items()}


def played(peers, **others):
    """Blocks of one repeat: two later rounds of one and of two seconds."""
    weights = {"fedsift": moved(peers), peers.REFERENCE: moved(peers)} | others
    return {way: [peers.Block(5.0, [1.0, 2.0], 0.0, found)] for way, found in weights.items()}


def test_a_peer_that_did_other_work_is_a_row_among_the_others(peers):
    # The plain loop went 1 for every weight: half as far is 50 % off, and 10 % is the limit.
    short = moved(peers)
    name = next(iter(short))
    del short[name]
    bad = {"half": moved(peers, 0.5), "short": short, "still": peers.start()}
    bad["broken"] = moved(peers, float("nan"))
    good, reference, *others = peers.rows(played(peers, **bad))
    assert (good["way"], good["off_plain_loop"], good["round_s"]["median"]) == ("fedsift", 0, 1.5)
    assert reference["times_fedsift"]["median"] == 1
    half = "did other work: its parameters are 50.00% off the plain loop after a round"
    assert [row["failed"] for row in others] == [
        half,
        f"did other work: it has no {name} as the plain loop has it",
        "did other work: its weights after the first round are the first ones",
        "did other work: its weights after the first round are not finite",
    ]
    lines = list(peers.table([good, *others]))
    assert lines[2].startswith("| fedsift | 1.5 (1.0 to 2.0) |")
    assert lines[3] == f"| half | {half} | | | | | |"


@pytest.mark.parametrize("way", ["fedsift", "fedsift, bfloat16", "fedsift, workers=2"])
def test_other_work_of_fedsift_itself_ends_the_case(peers, way):
    with pytest.raises(SystemExit, match=f"{way}: did other work"):
        list(peers.rows(played(peers, **{way: moved(peers, 0.5)})))


def test_all_four_cases_are_played_and_one_that_fails_does_not_end_the_others(
    peers, monkeypatch, capsys
):
    def play(model, clients, wanted):
        if (model, clients) == ("resnet8", 100):
            raise peers.PeerFailure("ended with code 1")
        rows = peers.rows(played(peers))
        return {"machine": {"model": model, "clients": clients}, "ways": list(rows)}

    monkeypatch.setattr(peers, "play_case", play)
    monkeypatch.setattr(peers.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["peers.py", "--all"])
    assert peers.main() is True
    text = capsys.readouterr().out
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    cases = [(model, n) for model in ("resnet8", "cnn") for n in (20, 100)]
    assert titles == [f"## {model}, {n} clients" for model, n in cases]
    assert text.count("| fedsift |") == 3 and "\nended with code 1\n" in text
    monkeypatch.setattr(sys, "argv", ["peers.py", "--all", "--json"])
    peers.main()
    told = json.loads(capsys.readouterr().out)["cases"]
    assert [one["machine"]["clients"] for one in told] == [20, 100, 20, 100]
    assert "failed" in told[1] and "ways" in told[0]


def test_a_case_is_a_process_that_is_told_everything(peers, monkeypatch, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import json, sys; print(json.dumps(sys.argv[1:]))")
    words = [str(script), "--all", "--repeats", "2", "--only", "FedJAX", "--patience", "1"]
    monkeypatch.setattr(sys, "argv", words)
    told = " ".join(peers.play_case("cnn", 100, peers.read_words()))
    assert told == (
        "--json --model cnn --clients 100 --only FedJAX --repeats 2 --rounds 4 --patience 1.0"
        " --tries 3"
    )
    script.write_text("import sys; sys.exit(3)")
    with pytest.raises(peers.PeerFailure, match="ended with code 3"):
        peers.play_case("cnn", 100, peers.read_words())


def test_a_way_that_ends_without_its_rounds_is_a_failure_in_words(peers, monkeypatch, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("")
    monkeypatch.setattr(peers, "__file__", str(script))
    with pytest.raises(peers.PeerFailure, match="without an error and without its rounds"):
        peers.block("FedJAX", 2)


@pytest.mark.slow
def test_worker_processes_end_with_the_weights_of_one_process(peers):
    found: dict[str, Any] = {}
    for way in ("fedsift", "fedsift, workers=2"):
        peers.WAYS[way](1, lambda weights, way=way: found.update({way: weights()}))
    one, two = found.values()
    assert all(torch.equal(one[name], two[name]) for name in one)
