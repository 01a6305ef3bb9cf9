"""What a file is that mcugrad cannot train: its quantization scheme by name, its operators by name, before anything else is said of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from mcugrad.errors import ModelError
from mcugrad.importer.tflite_file import NO_TENSOR, RawModel, RawOp

HINT_INT8 = (
    "convert again with optimizations = [tf.lite.Optimize.DEFAULT], a representative_dataset, "
    "target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8], inference_input_type = inference_output_type = tf.int8"
)
HINT_SIGNATURE = "export the inference signature only, with builtin operators"

_WITH_WEIGHTS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
_BORDER = ("QUANTIZE", "DEQUANTIZE")
_RESOURCES = ("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "CALL_ONCE", "HASHTABLE")
_FLOATS = ("float32", "float16", "float64", "bfloat16")


def refuse_foreign(raw: RawModel) -> None:
    """Raise ModelError for custom operators, for variables, and for every scheme that is not full int8, in this order."""
    for op in raw.ops:
        if op.code == "CUSTOM":
            raise ModelError(f"op {op.index} is the custom operator {op.custom}, which is not supported", HINT_SIGNATURE)
        if op.code in _RESOURCES:
            raise ModelError(f"{op.where} works on a resource variable, which is not supported", HINT_SIGNATURE)
    weighted = [op for op in raw.ops if op.code in _WITH_WEIGHTS]
    for op in weighted:
        _refuse_hybrid(raw, op)
    for op in weighted or [op for op in raw.ops if op.code not in _BORDER]:
        _refuse_scheme(raw, op)


def refuse_unsupported(raw: RawModel, supported: Collection[str]) -> None:
    """Raise ModelError for the first operator that mcugrad does not know, and for tensors that keep state between runs."""
    if not raw.ops:
        raise ModelError("the model has no operators", "export a model that computes something")
    for op in raw.ops:
        if op.code not in supported:
            raise ModelError(f"{op.where} is not supported", f"mcugrad knows {', '.join(sorted(supported))}")
    for t in raw.tensors:
        if t.variable:
            raise ModelError(f"{t.where} is a variable: models with state are not supported", HINT_SIGNATURE)


def _refuse_hybrid(raw: RawModel, op: RawOp) -> None:
    x, w = _type(raw, op, 0), _type(raw, op, 1)
    if x in _FLOATS and w not in (*_FLOATS, "missing"):
        _refuse(op, "hybrid (dynamic range)", f"{x} activations, {w} weights")


def _refuse_scheme(raw: RawModel, op: RawOp) -> None:
    x = _type(raw, op, 0)
    w = _type(raw, op, 1) if op.code in _WITH_WEIGHTS else x
    if x in _FLOATS:
        _refuse(op, "float", f"{x} activations")
    if x == "int16":
        _refuse(op, "int16x8", "int16 activations")
    if "uint8" in (x, w):
        _refuse(op, "uint8", "the older asymmetric scheme")
    if w == "int4":
        _refuse(op, "int4", "int4 weights")


def _type(raw: RawModel, op: RawOp, slot: int) -> str:
    index = op.inputs[slot] if slot < len(op.inputs) else NO_TENSOR
    return "missing" if index == NO_TENSOR else raw.tensors[index].type


def _refuse(op: RawOp, scheme: str, why: str) -> NoReturn:
    raise ModelError(f"{scheme} model ({why}, first seen at {op.where}), mcugrad trains full-int8 models", HINT_INT8)
