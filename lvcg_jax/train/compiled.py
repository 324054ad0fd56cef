"""Compiling and calling programs so that the process holds little more memory than they need."""

from collections.abc import Callable

import jax

from data_prep.base.memory import KeptRoom, give_back_freed_memory


def compile_program(function: Callable, *arguments) -> jax.stages.Compiled:
    """A jitted function compiled for its arguments, and not yet called.

    Compiling a training step takes more than a gigabyte, and so does running it. Freed memory is
    given back before and after, so that the process never holds both.
    """
    give_back_freed_memory()
    program = function.lower(*arguments).compile()
    give_back_freed_memory()
    return program


class CompiledStep:
    """A jitted function of a state and a batch, compiled once for each shape of the batch.

    On CPU, steps that share a room run one after another in the same memory.
    """

    def __init__(self, function: Callable, room: KeptRoom):
        self._function, self._room, self._programs = function, room, {}

    def __call__(self, state, batch):
        shapes = tuple(x.shape for x in jax.tree.leaves(batch))
        if shapes not in self._programs:
            self._room.give_up()
            self._programs[shapes] = compile_program(self._function, state, batch)
        program = self._programs[shapes]
        if jax.default_backend() != "cpu":
            return program(state, batch)
        # else another thread would run the step, when its arguments are there
        jax.block_until_ready((state, batch))
        with self._room.open(program.memory_analysis().temp_size_in_bytes):
            return program(state, batch)
