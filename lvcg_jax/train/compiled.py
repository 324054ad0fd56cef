"""Programs compiled and called so that a process holds little more memory than they need."""

from collections.abc import Callable

import jax

from data_prep.base.memory import KeptRoom, give_back_freed_memory


def compile_program(function: Callable, *arguments) -> jax.stages.Compiled:
    """A jitted function compiled for its arguments, and not yet called.

    Compiling a training step takes more than a gigabyte, and so does running it: neither finds the
    other's there.
    """
    give_back_freed_memory()
    program = function.lower(*arguments).compile()
    give_back_freed_memory()
    return program


class CompiledStep:
    """A jitted function of a state and a batch, compiled once for each shape of the batch.

    On CPU the steps that share a room run one after another in the same memory.
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
        # what is still being copied would make another thread run the step
        jax.block_until_ready((state, batch))
        with self._room.open(program.memory_analysis().temp_size_in_bytes):
            return program(state, batch)
