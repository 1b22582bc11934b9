"""Trained models of XGBoost and LightGBM as text, checked before the library reads it.

Both libraries follow the numbers of such a file without looking. So every branch must lead to a
later node, every feature must exist, and every list must be as long as the tree says. Only what was
checked is handed on, and written anew: nothing in the file is read in two ways.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from fedsift.types import UserError

OBJECTIVES = ("binary:logistic", "multi:softprob")
NO_PARENT = 2**31 - 1
# Of a tree of XGBoost: one value for each node.
WHOLE = ("left_children", "right_children", "parents", "split_indices", "split_type")
NUMBERS = ("base_weights", "loss_changes", "split_conditions", "sum_hessian")
CATEGORIES = ("categories", "categories_nodes", "categories_segments", "categories_sizes")


# --- XGBoost: JSON ---


def check_xgboost(raw: bytes, width: int, seen: int) -> bytes:
    """The same model, written anew; `seen` classes and `width` features."""
    try:
        learner = json.loads(raw, object_pairs_hook=_no_twins, parse_constant=_refuse)["learner"]
        return _write_learner(learner, width, seen)
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError, AttributeError):
        raise UserError("it is no model of XGBoost that is known here") from None


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands twice")
    return found


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _write_learner(learner: Any, width: int, seen: int) -> bytes:
    columns = 1 if seen == 2 else seen
    params = {key: str(value) for key, value in learner["learner_model_param"].items()}
    _expect(int(params["num_feature"]) == width, f"it takes {params['num_feature']} features")
    _expect(int(params["num_class"]) == (0 if seen == 2 else seen), "it has other classes")
    _expect(int(params["num_target"]) == 1, "it has several targets")
    scores = json.loads(params["base_score"])
    scores = scores if isinstance(scores, list) else [scores]
    _expect(len(scores) in (1, columns), "it has other classes")
    _check_numbers(scores, len(scores))
    name = learner["objective"]["name"]
    _expect(name == OBJECTIVES[seen > 2], f"its objective is {str(name)[:40]!r}")
    booster = learner["gradient_booster"]
    _expect(booster["name"] == "gbtree", "its booster is of another kind")
    made = {
        "learner_model_param": params,
        "objective": _write_objective(name, seen),
        "gradient_booster": {
            "name": "gbtree",
            "model": _write_model(booster["model"], width, columns),
        },
        "attributes": {},
        "feature_names": [],
        "feature_types": [],
    }
    return json.dumps({"learner": made, "version": [3, 0, 0]}).encode()


def _write_objective(name: str, seen: int) -> dict[str, Any]:
    if seen > 2:
        return {"name": name, "softmax_multiclass_param": {"num_class": str(seen)}}
    return {"name": name, "reg_loss_param": {"scale_pos_weight": "1"}}


def _write_model(model: Any, width: int, columns: int) -> dict[str, Any]:
    trees, groups, rounds = model["trees"], model["tree_info"], model["iteration_indptr"]
    parallel = int(model["gbtree_model_param"]["num_parallel_tree"])
    _check_whole(groups, len(trees), 0, columns)
    _expect(parallel >= 1 and len(trees) % (parallel * columns) == 0, "it has too few trees")
    _expect(rounds == list(range(0, len(trees) + 1, parallel * columns)), "it has odd rounds")
    return {
        "gbtree_model_param": {"num_parallel_tree": str(parallel), "num_trees": str(len(trees))},
        "iteration_indptr": rounds,
        "tree_info": groups,
        "trees": [_write_tree(tree, number, width) for number, tree in enumerate(trees)],
        "cats": {"enc": [], "feature_segments": [], "sorted_idx": []},
    }


def _write_tree(tree: Any, number: int, width: int) -> dict[str, Any]:
    nodes = int(tree["tree_param"]["num_nodes"])
    _expect(nodes >= 1 and int(tree["tree_param"]["num_deleted"]) == 0, "it has an odd tree")
    _expect(int(tree["tree_param"]["num_feature"]) == width, "it has a tree of other features")
    left, right = tree["left_children"], tree["right_children"]
    for children in (left, right):
        _check_whole(children, nodes, -1, nodes)
    _check_whole(tree["split_indices"], nodes, 0, width)
    _check_whole(tree["split_type"], nodes, 0, 1)
    _check_whole(tree["default_left"], nodes, 0, 2)
    parents = [NO_PARENT] * nodes
    for node in range(nodes):
        _expect((left[node] == -1) == (right[node] == -1), "it has a tree with half a leaf")
        for child in (left[node], right[node]):
            if child != -1:
                _expect(child > node and parents[child] == NO_PARENT, "its branches lead nowhere")
                parents[child] = node
    for key in NUMBERS:
        _check_numbers(tree[key], nodes)
    _expect(not any(tree[key] for key in CATEGORIES), "it has a tree with categories")
    sizes = {"num_deleted": "0", "num_feature": str(width)}
    sizes |= {"num_nodes": str(nodes), "size_leaf_vector": "1"}
    kept = {key: tree[key] for key in (*WHOLE, *NUMBERS, *CATEGORIES, "default_left")}
    return kept | {"parents": parents, "id": number, "tree_param": sizes}


# --- LightGBM: lines of key=value ---

INNER = ("split_feature", "split_gain", "threshold", "decision_type", "left_child", "right_child")
INNER_SUMS = ("internal_value", "internal_weight", "internal_count")
LEAVES = ("leaf_value", "leaf_weight", "leaf_count")
SIZES = ("num_class", "num_tree_per_iteration", "label_index", "max_feature_idx", "tree_sizes")
NAMES = ("version", "objective", "feature_names", "feature_infos", "monotone_constraints")
HEAD = (*SIZES, *NAMES)
END = "end of trees"


def check_lightgbm(text: str, width: int, seen: int) -> str:
    """The same model, written anew; `seen` classes and `width` features."""
    try:
        return _write_lines(text, width, seen)
    except UserError:
        raise
    except (KeyError, ValueError, IndexError):
        raise UserError("it is no model of LightGBM that is known here") from None


def _write_lines(text: str, width: int, seen: int) -> str:
    body, end, _ = text.partition(f"\n{END}\n")
    head, *blocks = re.split(r"\n\n+(?=Tree=\d+\n)", f"{body.rstrip()}\n")
    about = _read_keys(head)
    odd = [line for line in head.splitlines()[1:] if line.partition("=")[0] not in HEAD]
    _expect(not odd, f"it has a line {odd[0][:40]!r}" if odd else "")
    columns = 1 if seen == 2 else seen
    _expect(bool(end) and head.startswith("tree\n"), "it is cut short")
    _expect(int(about["max_feature_idx"]) == width - 1, "it takes other features")
    _expect(int(about["num_class"]) == columns, "it has other classes")
    _expect(int(about["num_tree_per_iteration"]) == columns, "it has other classes")
    _expect(len(blocks) % columns == 0, "it has too few trees")
    wanted = r"binary sigmoid:[\d.e+-]{1,20}" if seen == 2 else rf"multiclass num_class:{seen}"
    _expect(re.fullmatch(wanted, about["objective"]) is not None, "its objective is not known")
    trees = [_write_block(block, number, width) for number, block in enumerate(blocks)]
    lines = ["tree", "version=v4", f"num_class={columns}", f"num_tree_per_iteration={columns}"]
    lines += ["label_index=0", f"max_feature_idx={width - 1}", f"objective={about['objective']}"]
    lines += ["feature_names=" + " ".join(f"Column_{i}" for i in range(width))]
    lines += ["feature_infos=" + " ".join(["none"] * width)]
    lines += ["tree_sizes=" + " ".join(str(len(tree)) for tree in trees), "", ""]
    return "\n".join(lines) + "".join(trees) + f"{END}\n"


def _read_keys(block: str) -> dict[str, str]:
    pairs = [line.partition("=")[::2] for line in block.splitlines() if "=" in line]
    return _no_twins(pairs)


def _write_block(block: str, number: int, width: int) -> str:
    tree = _read_keys(block)
    leaves = int(tree["num_leaves"])
    _expect(leaves >= 1 and int(tree["Tree"]) == number, "it has an odd tree")
    _expect(int(tree["num_cat"]) == 0 and tree["is_linear"] == "0", "it has a tree with categories")
    values = {key: _read_values(tree[key], leaves - 1, key) for key in (*INNER, *INNER_SUMS)}
    alone = {"leaf_weight"} if leaves == 1 else set()
    values |= {
        key: _read_values(tree[key], 0 if key in alone and not tree[key] else leaves, key)
        for key in LEAVES
    }
    used, sides = values["split_feature"], (values["left_child"], values["right_child"])
    _check_whole(used, leaves - 1, 0, width)
    _check_whole(values["decision_type"], leaves - 1, 0, 16)
    reached: set[int] = set()
    for children in sides:
        _check_whole(children, leaves - 1, -leaves, leaves - 1)
        for node, child in enumerate(children):
            _expect(child < 0 or child > node, "its branches lead nowhere")
            _expect(child not in reached, "it has a node with two parents")
            reached.add(child)
    lines = [f"Tree={number}", f"num_leaves={leaves}", "num_cat=0"]
    keys = (*INNER, *LEAVES, *INNER_SUMS)
    lines += [f"{key}={' '.join(map(_spell, values[key]))}" for key in keys]
    _check_numbers([float(tree["shrinkage"])], 1)
    return "\n".join([*lines, "is_linear=0", f"shrinkage={tree['shrinkage']}", "", "", ""])


def _read_values(text: str, count: int, key: str) -> list[Any]:
    whole = key.endswith(("_child", "_feature", "_type", "_count"))
    found = [int(word) if whole else float(word) for word in text.split(" ") if word]
    _check_numbers(found, count)
    return found


def _spell(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.17g}"


# --- both ---


def _check_whole(values: Any, count: int, least: int, below: int) -> None:
    _expect(isinstance(values, list) and len(values) == count, "a list is too long or too short")
    for value in values:
        _expect(type(value) is int and least <= value < below, "it points to what is not there")


def _check_numbers(values: Any, count: int) -> None:
    _expect(isinstance(values, list) and len(values) == count, "a list is too long or too short")
    for value in values:
        _expect(type(value) in (int, float) and math.isfinite(value), "a number is none")


def _expect(fits: bool, said: str) -> None:
    if not fits:
        raise UserError(said)
