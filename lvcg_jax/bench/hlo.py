"""Operations and bytes of a compiled program, instruction by instruction, from its text.

XLA's own cost analysis has one sum for the whole program, in which a loop counts once. Here each
instruction keeps the name of the module that it came from, and a loop counts as often as it turns.
Operations are those of matrix products and convolutions. Bytes are those of the arrays that an
instruction reads and writes, padded to the tiles that they are stored in; a fusion reads its
operands and writes its results, and what is between never leaves the chip. Arrays that the
compiler keeps in the chip's fast memory, S(1) in the text, cost nothing.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

BITS = {
    "pred": 8,
    "s4": 4,
    "u4": 4,
    "s8": 8,
    "u8": 8,
    "s16": 16,
    "u16": 16,
    "f16": 16,
    "bf16": 16,
    "s32": 32,
    "u32": 32,
    "f32": 32,
    "s64": 64,
    "u64": 64,
    "f64": 64,
    "c64": 64,
}
PRODUCTS = ("dot", "convolution")
SLICES = ("slice", "dynamic-slice", "gather")
# these move nothing: they name arrays, or wait for what another instruction moves
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"}
FREE |= {"partition-id", "opt-barrier", "add-dependency", "custom-call", "copy-done"}


@dataclass(frozen=True)
class Array:
    """An array of the program as it is stored."""

    dims: tuple[int, ...]
    bytes: int  # padded to whole tiles
    on_chip: bool


@dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    result: tuple[Array, ...]
    operands: tuple[str, ...]
    attributes: str

    @property
    def origin(self) -> str:
        """Where in the program as it was written it comes from."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""

    def called(self, *words: str) -> list[str]:
        """The computations that it runs, by the word before them."""
        return re.findall(rf"(?:{'|'.join(words)})=%?([\w.\-]+)", self.attributes)


@dataclass
class Computation:
    """Instructions by name, in their order."""

    instructions: dict[str, Instruction] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions.values())

    def arrays(self, name: str) -> tuple[Array, ...]:
        return self.instructions[name].result


@dataclass(frozen=True)
class Cost:
    """What one instruction does each time that the program runs."""

    origin: str
    flops: float
    bytes: float  # between the chip and its memory
    cycles: float  # as the TPU's compiler estimates them; 0 elsewhere


class Program:
    """A compiled program that was read from its text."""

    def __init__(self, text: str):
        self.computations: dict[str, Computation] = {}
        current, entry = Computation(), ""
        for line in text.splitlines():
            if found := re.match(r"(ENTRY )?%?([\w.\-]+) (?:\(.*\) -> .*)?\{$", line):
                current = self.computations.setdefault(found[2], Computation())
                entry = found[2] if found[1] else entry
            elif found := re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*)", line):
                current.instructions[found[1]] = _read_instruction(found[1], found[2])
        self._entry = entry

    def costs(self) -> list[Cost]:
        """Of all instructions that run."""
        return list(self._walk(self._entry, 1))

    def _walk(self, name: str, times: int) -> Iterator[Cost]:
        computation, origins = self.computations[name], {}
        for step in computation:
            products = list(self._products(computation, step))
            # what the compiler added has no name, and belongs to what it works on
            named = [p.origin for _, p in products] + [step.origin]
            named += [origins.get(operand, "") for operand in step.operands]
            origins[step.name] = next(filter(None, named), "")
            if step.opcode == "while":
                (body,) = step.called("body")
                yield from self._walk(body, times * self._turns(step))
            elif step.opcode in ("call", "async-start"):
                for inner in step.called("calls", "to_apply"):
                    yield from self._walk(inner, times)
            elif step.opcode not in FREE and not step.opcode.endswith("-done"):
                flops = sum(_product_flops(inside, p) for inside, p in products)
                estimate = re.search(r'"estimated_cycles":"(\d+)"', step.attributes)
                cycles = int(estimate[1]) if estimate else 0
                moved = self._moved(computation, step)
                yield Cost(origins[step.name], times * flops, times * moved, times * cycles)

    def _turns(self, loop: Instruction) -> int:
        """How often a loop turns: as the compiler noted, or the number that its condition compares
        with."""
        if noted := re.search(r'known_trip_count":\{"n":"(\d+)"', loop.attributes):
            return int(noted[1])
        (condition,) = loop.called("condition")
        constants = [x for x in self.computations[condition] if x.opcode == "constant"]
        return max(int(x.operands[0]) for x in constants)

    def _products(
        self, computation: Computation, step: Instruction
    ) -> Iterator[tuple[Computation, Instruction]]:
        """The matrix products within an instruction."""
        if step.opcode in PRODUCTS:
            yield computation, step
        if step.opcode == "fusion":
            for name in step.called("calls"):
                inside = self.computations[name]
                for inner in inside:
                    yield from self._products(inside, inner)

    def _moved(self, computation: Computation, step: Instruction) -> float:
        """Bytes that an instruction reads and writes."""
        written = [x.bytes for x in step.result if not x.on_chip]
        read = [[x for x in computation.arrays(name) if not x.on_chip] for name in step.operands]
        if step.opcode in ("copy-start", "slice-start"):  # the result also names what is copied
            to = step.result[0 if step.opcode == "copy-start" else -2]
            return to.bytes * (bool(read[0]) + (not to.on_chip))
        if step.opcode in SLICES:
            return 2 * sum(written)
        if step.opcode == "dynamic-update-slice":
            return 2 * sum(x.bytes for x in read[1])
        if step.opcode == "fusion":
            return self._moved_by_fusion(step, read)
        return sum(written) + sum(x.bytes for arrays in read for x in arrays)

    def _moved_by_fusion(self, step: Instruction, read: list[list[Array]]) -> float:
        """An operand that is only sliced is read as far as the slices go; one that is only written
        into costs what is written."""
        (name,) = step.called("calls")
        inside, total = self.computations[name], 0.0
        parameters = {p.operands[0]: p for p in inside if p.opcode == "parameter"}
        kept = 0.0  # of the results: what is not written again
        for number, arrays in enumerate(read):
            whole = sum(x.bytes for x in arrays)
            users = [x for x in inside if parameters[str(number)].name in x.operands]
            places = [x.operands.index(parameters[str(number)].name) for x in users]
            if users and all(x.opcode in SLICES for x in users):
                parts = sum(sum(a.bytes for a in x.result) for x in users)
                total += min(whole, parts)
            elif [x.opcode for x in users] == ["dynamic-update-slice"] and places == [0]:
                update = sum(a.bytes for a in inside.arrays(users[0].operands[1]))
                total += update  # the part is written
                kept += whole
            else:
                total += whole
        written = sum(x.bytes for x in step.result if not x.on_chip)
        return total + max(0.0, written - kept)


def _read_instruction(name: str, text: str) -> Instruction:
    """From what follows `name =`: the type of the result, opcode(operands), attributes."""
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    types, rest = text[:end], text[end:].lstrip()
    start = rest.index("(")
    stop = _closing(rest, start)
    inside = rest[start + 1 : stop]
    opcode = rest[:start]
    literal = opcode in ("parameter", "constant")
    operands = (inside,) if literal else tuple(re.findall(r"%([\w.\-]+)", inside))
    return Instruction(name, opcode, _arrays(types), operands, rest[stop + 1 :])


def _closing(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes."""
    depth = 0
    for found in re.finditer(r"[()]", text[start:]):
        depth += 1 if found[0] == "(" else -1
        if depth == 0:
            return start + found.start()
    raise ValueError(f"a bracket is not closed: {text[:200]}")


def _arrays(types: str) -> tuple[Array, ...]:
    """The arrays of a type such as (f32[8,3]{1,0:T(8,128)S(1)}, s32[])."""
    found = []
    for dtype, dims, layout in re.findall(r"(\w+)\[([\d,]*)\](?:\{([^}]*)\})?", types):
        if dtype in BITS:
            shape = tuple(int(n) for n in dims.split(",") if n)
            count = math.prod(_padded(shape, layout))
            found.append(Array(shape, -(-count * BITS[dtype] // 8), "S(1)" in layout))
    return tuple(found)


def _padded(shape: tuple[int, ...], layout: str) -> list[int]:
    """The sizes from the fastest axis on, in whole tiles: {1,0:T(8,128)} stores [10,3] as 128 x
    16."""
    order, _, tiling = layout.partition(":")
    axes = [int(n) for n in order.split(",") if n] or list(range(len(shape)))[::-1]
    sizes = [shape[axis] for axis in axes]
    if tile := re.match(r"T\(([\d,]+)\)", tiling):
        for k, unit in enumerate(reversed([int(n) for n in tile[1].split(",")])):
            if k < len(sizes):
                sizes[k] = -(-sizes[k] // unit) * unit
    return sizes


def _product_flops(computation: Computation, step: Instruction) -> int:
    """A multiplication and an addition are two."""
    (result,), (left, right) = step.result, (computation.arrays(n)[0] for n in step.operands[:2])
    if step.opcode == "dot":
        found = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", step.attributes)
        summed = [left.dims[int(n)] for n in found[1].split(",") if n] if found else []
        return 2 * math.prod(result.dims) * math.prod(summed)

    # a convolution: for each axis that the window moves along, the taps that meet a sample
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", step.attributes)
    window = re.search(r"window=\{([^}]*)\}", step.attributes)
    fields = dict(x.split("=") for x in window[1].split()) if window else {}
    spatial = sorted(set(labels[1]) - {"b", "f"})
    meetings = 1
    for k, axis in enumerate(spatial):
        sizes = {
            name: int(fields[name].split("x")[k]) if name in fields else 1
            for name in ("size", "stride", "lhs_dilate", "rhs_dilate")
        }
        low = int(fields["pad"].split("x")[k].split("_")[0]) if "pad" in fields else 0
        meetings *= _meetings(
            left.dims[labels[1].index(axis)], result.dims[labels[3].index(axis)], low, **sizes
        )
    batch = result.dims[labels[3].index("b")]
    outputs = result.dims[labels[3].index("f")]
    inputs = right.dims[labels[2].index("i")]  # of one group
    found = re.search(r"batch_group_count=(\d+)", step.attributes)
    return 2 * meetings * batch * outputs * inputs // (int(found[1]) if found else 1)


def _meetings(
    inputs: int, outputs: int, low: int, size: int, stride: int, lhs_dilate: int, rhs_dilate: int
) -> int:
    """Pairs of an output and a tap whose sample is there, neither padding nor between samples."""
    places = (n * stride + tap * rhs_dilate - low for n in range(outputs) for tap in range(size))
    last = (inputs - 1) * lhs_dilate
    return sum(0 <= place <= last and place % lhs_dilate == 0 for place in places)
