"""What can be seen of the kernels without a GPU: their text."""

import ast
from pathlib import Path

import fedsift

CUDA = Path(fedsift.__file__).parent / "engines" / "stacked" / "cuda"
# arguments that are a distance between two models' values, up to all weights of one
DISTANCES = {"row", "gradient_row", "w_model", "bias_model", "parts_model", "P"}


def test_a_place_among_all_weights_is_counted_in_64_bits():
    """2,048 models of 1.1 million weights are more than 2^31; an index of Triton has 32 bits."""
    tree = ast.parse((CUDA / "triton_kernels.py").read_text())
    products = [
        n for n in ast.walk(tree) if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)
    ]
    found = [
        ast.unparse(product.left)
        for product in products
        if isinstance(product.right, ast.Name) and product.right.id in DISTANCES
    ]
    assert len(found) >= 12 and set(found) == {"m.to(tl.int64)"}
