#!/usr/bin/env python3
"""Cases of the operators of ai.onnx.ml, with what ONNX Runtime computes.

    python3 tests/ml/make.py store                     makes cases.zip, which tests/tests/ml.rs runs
    python3 tests/ml/make.py fresh TENSORC COUNT SEED  draws COUNT cases of each operator, and compares the program's results

Packages and options are those of tests/contrib/make.py. The drawn operators are the functions of `drawn_*.py`.
"""
import pathlib, sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "contrib")]
import drawn_models, drawn_trees

sys.path.pop(0)
import make

DOMAIN = "ai.onnx.ml"


def of_domain(name, draw):
    """A case with the domain, the operator and the operator set."""

    def drawn(rng):
        case = draw(rng)
        version = case.pop("ml", 1)
        return {"op": name, "domain": DOMAIN, "opset": (DOMAIN, version), **case}

    return drawn


OPERATORS = {name: of_domain(name, draw) for name, draw in {**drawn_trees.DRAWN, **drawn_models.DRAWN}.items()}

if __name__ == "__main__":
    sys.exit(make.main(OPERATORS, HERE, __doc__))
