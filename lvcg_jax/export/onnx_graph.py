"""A JAX function with fixed shapes as an ONNX graph, by way of its jaxpr.

Only the operations that embeddings are made of are known; another one is an InputError that names
it. What depends on weights alone is computed here and stored. Loops of fixed length are written out
step by step, and `while` becomes ONNX's Loop. Where a function differs by platform, its form for
any platform is taken.

ONNX Runtime has few operations for some types. So in the graph float16 is float32 (rounded once,
where the function rounds), and unsigned integers are int64.
"""

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
import onnx
from jax.extend import core
from onnx import TensorProto, helper, numpy_helper

from data_prep.base.errors import InputError

OPSET = 18
IR_VERSION = 10  # of the file format; runtimes of 2024 read it
TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.bool_): TensorProto.BOOL,
}
ELEMENTWISE = {
    "add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max",
    "min": "Min", "pow": "Pow", "exp": "Exp", "log": "Log", "tanh": "Tanh", "logistic": "Sigmoid",
    "sqrt": "Sqrt", "sign": "Sign", "abs": "Abs", "neg": "Neg", "sin": "Sin", "cos": "Cos",
    "erf": "Erf", "floor": "Floor", "lt": "Less", "lt_to": "Less", "le": "LessOrEqual",
    "le_to": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "eq": "Equal",
    "copy": "Identity", "stop_gradient": "Identity", "not": "Not",
}  # fmt: skip
CALLS = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")
Value = np.ndarray | str  # known here, or the name of a tensor in the graph


def make_onnx(
    function: Callable[..., dict[str, jax.Array]], inputs: dict[str, jax.ShapeDtypeStruct]
) -> onnx.ModelProto:
    """The model of a function of arrays with these names and shapes, which gives a dict."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(*inputs.values())
    graph = _Graph(itertools.count(), {})
    results = graph.run(closed.jaxpr, closed.consts, list(inputs))
    outputs = dict(zip(jax.tree.leaves({name: name for name in shapes}), results, strict=True))
    for name, value in outputs.items():
        graph.nodes.append(helper.make_node("Identity", [graph.name(value)], [name]))
    nodes, used = _needed(graph.nodes, set(outputs))
    made = helper.make_graph(
        nodes,
        "lvcg",
        [_described(name, x) for name, x in inputs.items()],
        [_described(name, shapes[name]) for name in outputs],
        [initializer for name, initializer in graph.stored.values() if name in used],
    )
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    onnx.checker.check_model(model)
    return model


def _needed(nodes: list[onnx.NodeProto], wanted: set[str]) -> tuple[list, set[str]]:
    """The nodes that these outputs depend on, and the names of all that they read."""
    kept = []
    for node in reversed(nodes):
        if wanted & set(node.output):
            kept.append(node)
            wanted |= set(node.input)
            for attribute in node.attribute:
                wanted |= {name for inner in attribute.g.node for name in inner.input}
    return kept[::-1], wanted


def _stored_type(dtype) -> np.dtype:
    """The type that stands in the graph for a type of JAX."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return np.dtype(np.float32)
    return np.dtype(np.int64) if dtype.kind == "u" else dtype


def _described(name: str, aval) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TYPES[_stored_type(aval.dtype)], aval.shape)


class _Graph:
    """The nodes of a graph, or of the body of a loop in it. Constants are stored once, in the
    outermost graph, under a name that bodies see too."""

    def __init__(self, numbers: itertools.count, stored: dict):
        self.nodes: list[onnx.NodeProto] = []
        self.numbers, self.stored = numbers, stored

    # ---- values and nodes

    def name(self, value: Value) -> str:
        """The name of a value; a constant is stored."""
        if isinstance(value, str):
            return value
        value = np.asarray(value)
        value = value.astype(_stored_type(value.dtype))
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self.stored:
            name = f"c{len(self.stored)}"
            self.stored[key] = (name, numpy_helper.from_array(value, name))
        return self.stored[key][0]

    def add(self, kind: str, *inputs: Value, outputs: int = 1, **attributes):
        """A node; the name of its output, or of each of several."""
        names = [f"t{next(self.numbers)}" for _ in range(outputs)]
        given = [self.name(value) for value in inputs]
        self.nodes.append(helper.make_node(kind, given, names, **attributes))
        return names[0] if outputs == 1 else names

    def ints(self, numbers: Sequence[int]) -> np.ndarray:
        return np.array(numbers, np.int64)

    def cast(self, value: Value, dtype) -> str:
        return self.add("Cast", value, to=TYPES[_stored_type(dtype)])

    def reshape(self, value: Value, shape: Sequence[int]) -> str:
        return self.add("Reshape", value, self.ints(shape))

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        order = [int(axis) for axis in order]
        return value if order == sorted(order) else self.add("Transpose", value, perm=order)

    # ---- a jaxpr, equation by equation

    def run(self, jaxpr, consts: Sequence, arguments: Sequence[Value]) -> list[Value]:
        """Adds the equations of a jaxpr; the values of its results."""
        known: dict = {}

        def read(atom) -> Value:
            if isinstance(atom, core.Literal):
                return np.asarray(atom.val, atom.aval.dtype)
            return known[atom]

        known |= zip(jaxpr.constvars, map(np.asarray, consts), strict=True)
        known |= zip(jaxpr.invars, arguments, strict=True)
        for equation in jaxpr.eqns:
            values = [read(atom) for atom in equation.invars]
            known |= zip(equation.outvars, self.equation(equation, values), strict=True)
        return [read(atom) for atom in jaxpr.outvars]

    def equation(self, equation, values: list[Value]) -> list[Value]:
        """The results of one equation: computed where all is known, else as nodes."""
        kind, params = equation.primitive.name, equation.params
        if kind == "platform_index":
            return [np.int32(next(i for i, names in enumerate(params["platforms"]) if not names))]
        if kind in CALLS:
            inner = params.get("jaxpr") or params["call_jaxpr"]
            return self.run(inner.jaxpr, inner.consts, values)
        if kind == "cond" and not isinstance(values[0], str):
            branch = params["branches"][int(values[0])]
            return self.run(branch.jaxpr, branch.consts, values[1:])
        if kind == "optimization_barrier":
            return values
        if not any(isinstance(value, str) for value in values):
            return _compute(equation, values)
        if kind == "scan":
            return self.scan(params, values)
        if kind == "while":
            return self.loop(params, values)
        if kind == "split":
            sizes, axis = self.ints(params["sizes"]), params["axis"]
            found = self.add("Split", values[0], sizes, outputs=len(sizes), axis=axis)
            return found if isinstance(found, list) else [found]
        avals = [atom.aval for atom in equation.invars]
        (out,) = (atom.aval for atom in equation.outvars)
        if kind in ELEMENTWISE:
            return [self.add(ELEMENTWISE[kind], *values)]
        if not hasattr(self, f"on_{kind}"):
            raise InputError(
                f"the operation '{kind}' of this model has no counterpart in the export to ONNX:"
                " use --format=stablehlo"
            )
        return [getattr(self, f"on_{kind}")(values, avals, out, params)]

    # ---- loops

    def scan(self, params: dict, values: list[Value]) -> list[Value]:
        """Every step written out."""
        body, consts, carried = params["jaxpr"], params["num_consts"], params["num_carry"]
        fixed, state = values[:consts], values[consts : consts + carried]
        rows, steps = values[consts + carried :], range(params["length"])
        found: list[list[Value]] = [[] for _ in body.out_avals[carried:]]
        for step in reversed(steps) if params["reverse"] else steps:
            here = [
                self.add("Gather", row, np.int64(step)) if isinstance(row, str) else row[step]
                for row in rows
            ]
            results = self.run(body.jaxpr, body.consts, [*fixed, *state, *here])
            state = results[:carried]
            for values_of_step, value in zip(found, results[carried:], strict=True):
                values_of_step.append(value)
        stacked = [self.stack(x[::-1] if params["reverse"] else x, 0) for x in found]
        return [*state, *stacked]

    def loop(self, params: dict, values: list[Value]) -> list[Value]:
        """A `while` as ONNX's Loop: it goes on while the condition, computed at the end of each
        turn, holds."""
        test, body = params["cond_jaxpr"], params["body_jaxpr"]
        if test.out_avals[0].shape:  # under vmap
            raise InputError(
                "a loop that ends row by row has no counterpart in the export to ONNX:"
                " use --format=stablehlo"
            )
        of_test, of_body = params["cond_nconsts"], params["body_nconsts"]
        tested = values[:of_test]
        fixed, state = values[of_test : of_test + of_body], values[of_test + of_body :]
        (goes,) = self.run(test.jaxpr, test.consts, [*tested, *state])
        inside = _Graph(self.numbers, self.stored)
        avals = body.out_avals
        names = [f"t{next(self.numbers)}" for _ in range(2 + len(avals))]
        results = inside.run(body.jaxpr, body.consts, [*fixed, *names[2:]])
        (again,) = inside.run(test.jaxpr, test.consts, [*tested, *results])
        ends = [inside.add("Identity", value) for value in (again, *results)]
        scalar = jax.ShapeDtypeStruct((), np.int64), jax.ShapeDtypeStruct((), np.bool_)
        described = [_described(n, x) for n, x in zip(names, (*scalar, *avals), strict=True)]
        given = [_described(n, x) for n, x in zip(ends, (scalar[1], *avals), strict=True)]
        graph = helper.make_graph(inside.nodes, f"body{next(self.numbers)}", described, given)
        made = self.add("Loop", "", goes, *state, outputs=len(avals), body=graph)
        return made if isinstance(made, list) else [made]

    # ---- shapes

    def stack(self, values: Sequence[Value], axis: int) -> str:
        return self.add(
            "Concat", *(self.add("Unsqueeze", x, self.ints([axis])) for x in values), axis=axis
        )

    def on_stack(self, values, avals, out, params):
        return self.stack(values, params["axis"])

    def on_concatenate(self, values, avals, out, params):
        return self.add("Concat", *values, axis=params["dimension"])

    def on_reshape(self, values, avals, out, params):
        return self.reshape(values[0], out.shape)

    on_squeeze = on_expand_dims = on_reshape

    def on_transpose(self, values, avals, out, params):
        return self.transpose(values[0], params["permutation"])

    def on_broadcast_in_dim(self, values, avals, out, params):
        shape = [1] * len(out.shape)
        for size, axis in zip(avals[0].shape, params["broadcast_dimensions"], strict=True):
            shape[axis] = size
        value = self.reshape(values[0], shape)
        return (
            value if tuple(shape) == out.shape else self.add("Expand", value, self.ints(out.shape))
        )

    def on_slice(self, values, avals, out, params):
        axes = range(len(out.shape))
        steps = params["strides"] or [1] * len(out.shape)
        places = (params["start_indices"], params["limit_indices"], axes, steps)
        return self.add("Slice", values[0], *map(self.ints, places))

    def piece(self, value: Value, shape, starts: dict[int, Value], sizes: Sequence[int]) -> str:
        """A piece of these sizes from a place on some axes that is known here, as in a loop that
        is written out."""
        if any(isinstance(start, str) for start in starts.values()):
            raise InputError(
                "a piece from a place that is not fixed has no counterpart in the export to ONNX:"
                " use --format=stablehlo"
            )
        axes = list(starts)
        first = [min(max(int(starts[axis]), 0), shape[axis] - sizes[axis]) for axis in axes]
        last = [start + sizes[axis] for axis, start in zip(axes, first, strict=True)]
        return self.add("Slice", value, *map(self.ints, (first, last, axes)))

    def on_dynamic_slice(self, values, avals, out, params):
        starts = dict(enumerate(values[1:]))
        return self.piece(values[0], avals[0].shape, starts, params["slice_sizes"])

    def on_pad(self, values, avals, out, params):
        low, high, between = zip(*params["padding_config"], strict=True)
        if any(between):
            raise InputError("padding between elements has no counterpart in the export to ONNX")
        return self.add("Pad", values[0], self.ints([*low, *high]), values[1])

    def on_rev(self, values, avals, out, params):
        axes = params["dimensions"]
        far = [np.iinfo(np.int64).min] * len(axes)
        back = [-1] * len(axes)
        return self.add("Slice", values[0], *map(self.ints, (back, far, axes, back)))

    # ---- numbers

    def on_convert_element_type(self, values, avals, out, params):
        if np.dtype(out.dtype) == np.float16:  # rounded, and kept as float32
            values = [self.add("Cast", values[0], to=TensorProto.FLOAT16)]
        return self.cast(values[0], out.dtype)

    def on_select_n(self, values, avals, out, params):
        which, otherwise, then = values
        if out.dtype != np.bool_:
            return self.add("Where", which, then, otherwise)
        wide = [self.cast(value, np.int32) for value in (then, otherwise)]
        return self.cast(self.add("Where", which, *wide), np.bool_)

    def on_ne(self, values, avals, out, params):
        return self.add("Not", self.add("Equal", *values))

    def on_and(self, values, avals, out, params):
        return self.add("And" if out.dtype == np.bool_ else "BitwiseAnd", *values)

    def on_or(self, values, avals, out, params):
        return self.add("Or" if out.dtype == np.bool_ else "BitwiseOr", *values)

    def on_integer_pow(self, values, avals, out, params):
        power = params["y"]
        product = values[0]
        for _ in range(abs(power) - 1):
            product = self.add("Mul", product, values[0])
        return self.add("Reciprocal", product) if power < 0 else product

    def on_square(self, values, avals, out, params):
        return self.add("Mul", values[0], values[0])

    def on_rsqrt(self, values, avals, out, params):
        return self.add("Reciprocal", self.add("Sqrt", values[0]))

    def on_log1p(self, values, avals, out, params):
        return self.add("Log", self.add("Add", values[0], np.float32(1)))

    def on_erfc(self, values, avals, out, params):
        return self.add("Sub", np.float32(1), self.add("Erf", values[0]))

    def on_clamp(self, values, avals, out, params):
        low, x, high = values
        return self.add("Min", self.add("Max", x, low), high)

    # ---- reductions

    def reduced(self, kind: str, value: Value, axes: Sequence[int]) -> str:
        return self.add(kind, value, self.ints(axes), keepdims=0)

    def on_reduce_sum(self, values, avals, out, params):
        return self.reduced("ReduceSum", values[0], params["axes"])

    def on_reduce_max(self, values, avals, out, params):
        return self.reduced("ReduceMax", values[0], params["axes"])

    def on_reduce_min(self, values, avals, out, params):
        return self.reduced("ReduceMin", values[0], params["axes"])

    def on_reduce_or(self, values, avals, out, params):
        wide = self.cast(values[0], np.int32)
        return self.cast(self.reduced("ReduceMax", wide, params["axes"]), np.bool_)

    def on_reduce_and(self, values, avals, out, params):
        wide = self.cast(values[0], np.int32)
        return self.cast(self.reduced("ReduceMin", wide, params["axes"]), np.bool_)

    def on_argmax(self, values, avals, out, params):
        value = values[0]
        if avals[0].dtype == np.bool_:
            value = self.cast(value, np.int32)
        (axis,) = params["axes"]
        return self.cast(self.add("ArgMax", value, axis=axis, keepdims=0), out.dtype)

    def on_cumsum(self, values, avals, out, params):
        axis = np.int64(params["axis"])
        return self.add("CumSum", values[0], axis, reverse=int(params["reverse"]))

    # ---- products

    def on_dot_general(self, values, avals, out, params):
        """As a product of matrices: [batch, free, summed] times [batch, summed, free]."""
        (left_sum, right_sum), (left_batch, right_batch) = params["dimension_numbers"]
        left, right = (aval.shape for aval in avals)
        left_free = [i for i in range(len(left)) if i not in (*left_sum, *left_batch)]
        right_free = [i for i in range(len(right)) if i not in (*right_sum, *right_batch)]
        batch = [left[i] for i in left_batch]
        summed = math.prod(left[i] for i in left_sum)
        a = self.transpose(values[0], [*left_batch, *left_free, *left_sum])
        b = self.transpose(values[1], [*right_batch, *right_sum, *right_free])
        a = self.reshape(a, [*batch, math.prod(left[i] for i in left_free), summed])
        b = self.reshape(b, [*batch, summed, math.prod(right[i] for i in right_free)])
        return self.reshape(self.add("MatMul", a, b), out.shape)

    def on_conv_general_dilated(self, values, avals, out, params):
        numbers = params["dimension_numbers"]
        low, high = zip(*params["padding"], strict=True)
        if params["batch_group_count"] != 1 or set(params["lhs_dilation"]) != {1}:
            raise InputError("this convolution has no counterpart in the export to ONNX")
        made = self.add(
            "Conv",
            self.transpose(values[0], numbers.lhs_spec),
            self.transpose(values[1], numbers.rhs_spec),
            strides=list(params["window_strides"]),
            pads=[*low, *high],
            dilations=list(params["rhs_dilation"]),
            group=params["feature_group_count"],
        )
        return self.transpose(made, np.argsort(numbers.out_spec))

    def on_gather(self, values, avals, out, params):
        """Single elements along the indexed axes, and all of the others: ONNX's GatherND. What vmap
        makes of a piece from a known place is such a piece again."""
        numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
        operand, indices = avals
        if indices.ndim == 1 and not isinstance(values[1], str):
            starts = dict(zip(map(int, numbers.start_index_map), values[1], strict=True))
            return self.reshape(self.piece(values[0], operand.shape, starts, sizes), out.shape)
        batch, indexed = (
            [int(i) for i in axes]
            for axes in (numbers.operand_batching_dims, numbers.start_index_map)
        )
        rest = [i for i in range(operand.ndim) if i not in (*batch, *indexed)]
        whole = all(sizes[i] == (operand.shape[i] if i in rest else 1) for i in range(operand.ndim))
        first = tuple(range(len(batch)))
        if not whole or tuple(map(int, numbers.start_indices_batching_dims)) != first:
            raise InputError("this way to index has no counterpart in the export to ONNX")
        # indices within the axes, as int64
        last = self.ints([operand.shape[i] - 1 for i in indexed])
        places = self.cast(values[1], np.int64)
        places = self.add("Min", self.add("Max", places, self.ints([0])), last)
        taken = self.transpose(values[0], [*batch, *indexed, *rest])
        made = self.add("GatherND", taken, places, batch_dims=len(batch))
        # where the result has the axes of the indices and those that were taken whole
        collapsed = {int(i) for i in (*numbers.collapsed_slice_dims, *batch)}
        kept = iter([i for i in range(operand.ndim) if i not in collapsed])
        of_indices, order = iter(range(indices.ndim - 1)), []
        offsets = {int(i) for i in numbers.offset_dims}
        for axis in range(out.ndim):
            if axis not in offsets:
                order.append(next(of_indices))
            elif (source := next(kept)) in rest:  # an indexed axis has one element
                order.append(indices.ndim - 1 + rest.index(source))
        return self.reshape(self.transpose(made, order), out.shape)


def _compute(equation, values: list[Value]) -> list[Value]:
    """An equation of known values."""
    params = equation.primitive.get_bind_params(equation.params)
    found = equation.primitive.bind(*values, **params)
    return [np.asarray(x) for x in (found if equation.primitive.multiple_results else [found])]
