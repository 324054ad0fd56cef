"""Random orders in which any place can be asked for by itself, many at a time.

An order of n things is never written down. A place x < n is split into a pair of digits, x = low +
a high with a near the square root of n, and rounds of a Feistel network move each digit by a random
amount that follows from the other one and the key. Every round can be undone, so all of them
together are a permutation of the a b >= n pairs. One that leads beyond n is led on until it is back
below n, which leaves a permutation of n things.
"""

import numpy as np

ROUNDS = 8
# odd numbers whose multiples spread over all bits: the golden ratio, the constants of SplitMix64
_STEP, _FIRST, _SECOND = (
    np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB),
)  # fmt: skip


def random_bits(*words: int | np.ndarray) -> np.ndarray:
    """64 random bits for every combination of whole numbers, uint64 of their common shape (at least
    one axis)."""
    bits = np.zeros(1, np.uint64)
    for word in words:
        word = np.asarray(word % 2**64 if isinstance(word, int) else word).astype(np.uint64)
        bits = (bits ^ word) + _STEP
        bits = (bits ^ (bits >> np.uint64(30))) * _FIRST
        bits = (bits ^ (bits >> np.uint64(27))) * _SECOND
        bits ^= bits >> np.uint64(31)
    return bits


def below(limit: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Random bits as whole numbers from 0 to limit - 1, for limits up to 2^32."""
    return ((bits >> np.uint64(32)) * limit) >> np.uint64(32)


def shuffled(place: np.ndarray, size: np.ndarray, key: np.ndarray) -> np.ndarray:
    """What stands at a place of a random order of the numbers below `size`.

    Args:
      place: int [n], each below its size.
      size: int [n], how many things are in order, up to 2^32.
      key: uint64 [n]; places with the same key and size are of one order.

    Returns:
      int64 [n].
    """
    low_size = np.ceil(np.sqrt(size)).astype(np.uint64)
    size = size.astype(np.uint64)
    sizes = (low_size, -(-size.astype(np.int64) // low_size.astype(np.int64)).astype(np.uint64))
    result = _walk(place.astype(np.uint64), sizes, key)
    beyond = np.flatnonzero(result >= size)
    while len(beyond):
        some = tuple(digit[beyond] for digit in sizes)
        result[beyond] = _walk(result[beyond], some, key[beyond])
        beyond = beyond[result[beyond] >= size[beyond]]
    return result.astype(np.int64)


def _walk(place: np.ndarray, sizes: tuple[np.ndarray, np.ndarray], key: np.ndarray) -> np.ndarray:
    """One step: a permutation of the numbers below the product of the two sizes."""
    high, low = np.divmod(place, sizes[0])
    digits = [low, high]
    for k in range(ROUNDS):
        mine, other = k % 2, 1 - k % 2
        key = key + _STEP
        bits = (digits[other] ^ key) * _FIRST
        bits = (bits ^ (bits >> np.uint64(29))) * _SECOND
        moved = digits[mine] + below(sizes[mine], bits)
        digits[mine] = np.where(moved >= sizes[mine], moved - sizes[mine], moved)
    return digits[0] + sizes[0] * digits[1]
