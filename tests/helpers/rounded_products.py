"""A program as on an accelerator whose matrix units take bfloat16: the float32 factors of each
product and convolution are rounded to it, unless the product asks for the highest precision. Sums
are float32, as there."""

from functools import partial

import jax
from jax.extend.core import ClosedJaxpr, Literal

PRODUCTS = ("dot_general", "conv_general_dilated")
LOOPS = ("scan", "while", "cond")  # whose bodies are programs of their own
HIGHEST = jax.lax.Precision.HIGHEST


def rounded(function):
    """The function of arrays, jitted, with such products."""

    def call(*arguments):
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        found = _run(program.jaxpr, program.consts, *jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), found)

    return jax.jit(call)


def _round(x: jax.Array) -> jax.Array:
    return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def _run(jaxpr, consts, *arguments) -> list[jax.Array]:
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *arguments), strict=True))

    def read(atom):
        return atom.val if isinstance(atom, Literal) else values[atom]

    for equation in jaxpr.eqns:
        given = [read(atom) for atom in equation.invars]
        primitive, params = equation.primitive, equation.params
        inner = params.get("call_jaxpr", params.get("jaxpr"))
        if primitive.name in LOOPS:
            params = {name: _in_loop(value) for name, value in params.items()}
        elif inner is not None:
            whole = isinstance(inner, ClosedJaxpr)
            jaxpr_of, consts_of = (inner.jaxpr, inner.consts) if whole else (inner, ())
            values |= zip(equation.outvars, _run(jaxpr_of, consts_of, *given), strict=True)
            continue
        elif primitive.name in PRODUCTS and params["precision"] != (HIGHEST, HIGHEST):
            given = [_round(x) if x.dtype == "float32" else x for x in given]
        found = primitive.bind(*given, **primitive.get_bind_params(params))
        found = found if primitive.multiple_results else [found]
        values |= zip(equation.outvars, found, strict=True)
    return [read(atom) for atom in jaxpr.outvars]


def _in_loop(value):
    """A parameter of a loop, with its programs rewritten."""
    if isinstance(value, tuple) and value and isinstance(value[0], ClosedJaxpr):
        return tuple(map(_in_loop, value))
    if not isinstance(value, ClosedJaxpr):
        return value
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in value.in_avals]
    return jax.make_jaxpr(partial(_run, value.jaxpr, value.consts))(*shapes)
