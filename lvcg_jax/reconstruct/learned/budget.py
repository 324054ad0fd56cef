"""Floating-point operations of a function, counted in its trace: the same on every device.

Matrix products and convolutions count, a multiplication and an addition being two; the body of a
loop counts as often as it runs, which XLA's own estimate does not do. Everything else is left out.
"""

import jax
import numpy as np
from jax.extend.core import Jaxpr, jaxprs_in_params


def count_flops(function, *arguments) -> int:
    """The operations of one call."""
    return _count(jax.make_jaxpr(function)(*arguments).jaxpr)


def _count(jaxpr: Jaxpr) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        shape = eqn.outvars[0].aval.shape if eqn.outvars else ()
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            sides = [eqn.invars[0].aval.shape[axis] for axis in contracted]
            total += 2 * int(np.prod(shape)) * int(np.prod(sides))
        elif eqn.primitive.name == "conv_general_dilated":
            kernel, spec = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec
            total += 2 * int(np.prod(shape)) * int(np.prod(kernel)) // kernel[spec[0]]
        else:
            inner = [_count(sub) for sub in jaxprs_in_params(eqn.params)]
            one_of = eqn.primitive.name == "cond"  # one branch runs
            times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
            total += times * (max(inner) if one_of else sum(inner))
    return total
