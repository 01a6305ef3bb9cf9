"""What a file is that mcugrad cannot take: its operators by name, then its quantization scheme, before anything else is said of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NoReturn

from mcugrad.errors import ModelError
from mcugrad.importer.tflite_file import NO_TENSOR, RawModel, RawOp

HINT_INT8 = (
    "convert again with optimizations = [tf.lite.Optimize.DEFAULT], a representative_dataset, "
    "target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8], inference_input_type = inference_output_type = tf.int8"
)
HINT_QUANTIZE = "or quantize it here: mcugrad quantize MODEL --data calib.npz -o model.tflite"
HINT_SIGNATURE = "export the inference signature only, with builtin operators"

FLOATS = ("float32", "float16", "float64", "bfloat16")
FLOAT_SCHEMES = ("float", "hybrid")

_WITH_WEIGHTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
_BORDER = ("QUANTIZE", "DEQUANTIZE")
_RESOURCES = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE", "HASHTABLE")

Cut = Callable[[RawModel, Collection[int]], str]
"""(model, indices of operators that are not supported) -> what of the model is supported, in words, or nothing."""


def refuse_unsupported(raw: RawModel, supported: Collection[str], cut: Cut) -> None:
    """Raise ModelError for the first operator that mcugrad does not know, for tensors that keep state, and for more than one subgraph.

    ``cut`` says where such a model can be cut, for the hint.
    """
    if not raw.ops:
        raise ModelError("the model has no operators", "export a model that computes something")
    bad = [op for op in raw.ops if op.code not in supported]
    if bad:
        _refuse_operator(raw, bad[0], supported, cut(raw, [op.index for op in bad]))
    for t in raw.tensors:
        if t.variable:
            raise ModelError(f"{t.where} is a variable: models with state are not supported", HINT_SIGNATURE)
    if raw.subgraphs != 1:
        raise ModelError(f"{raw.subgraphs} subgraphs, mcugrad reads one", "export the inference signature only")


def _refuse_operator(raw: RawModel, op: RawOp, supported: Collection[str], cut: str) -> NoReturn:
    writes = f"(it writes {raw.tensors[op.outputs[0]].where})" if op.outputs else "(it has no output)"
    if op.code == "CUSTOM":
        text, hint = f"op {op.index} is the custom operator {op.custom}, which is not supported {writes}", HINT_SIGNATURE
    elif op.code in _RESOURCES:
        text, hint = f"{op.where} works on a resource variable, which is not supported {writes}", HINT_SIGNATURE
    else:
        text, hint = f"{op.where} is not supported {writes}", f"mcugrad knows {', '.join(sorted(supported))}"
    raise ModelError(text, f"{cut}; {hint}" if cut else hint)


def refuse_foreign(raw: RawModel, *, allow_float: bool) -> bool:
    """Raise ModelError for every scheme that is not full int8; with ``allow_float``, float and hybrid models pass.

    Returns whether the model computes in float.
    """
    weighted = [op for op in raw.ops if op.code in _WITH_WEIGHTS]
    schemes = [(_hybrid(raw, op), op) for op in weighted]
    schemes += [(_scheme(raw, op), op) for op in weighted or [op for op in raw.ops if op.code not in _BORDER]]
    for found, op in schemes:
        if found is not None:
            scheme, why = found
            if allow_float and scheme in FLOAT_SCHEMES:
                return True
            hint = f"{HINT_INT8}; {HINT_QUANTIZE}" if scheme in FLOAT_SCHEMES else HINT_INT8
            name = "hybrid (dynamic range)" if scheme == "hybrid" else scheme
            raise ModelError(f"{name} model ({why}, first seen at {op.where}), mcugrad trains full-int8 models", hint)
    return False


def _hybrid(raw: RawModel, op: RawOp) -> tuple[str, str] | None:
    x, w = _type(raw, op, 0), _type(raw, op, 1)
    return ("hybrid", f"{x} activations, {w} weights") if x in FLOATS and w not in (*FLOATS, "missing") else None


def _scheme(raw: RawModel, op: RawOp) -> tuple[str, str] | None:
    """The name of an operator's scheme and what shows it; None for int8, and for integers of shape arithmetic."""
    x = _type(raw, op, 0)
    w = _type(raw, op, 1) if op.code in _WITH_WEIGHTS else x
    if x in FLOATS:
        return "float", f"{x} activations"
    if x == "int16":
        return "int16x8", "int16 activations"
    if "uint8" in (x, w):
        return "uint8", "the older asymmetric scheme"
    if w == "int4":
        return "int4", "int4 weights"
    return None


def _type(raw: RawModel, op: RawOp, slot: int) -> str:
    index = op.inputs[slot] if slot < len(op.inputs) else NO_TENSOR
    return "missing" if index == NO_TENSOR else raw.tensors[index].type
