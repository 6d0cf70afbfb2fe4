"""Arrays that the builds of a process share: equal weights are in memory once.

Builds of one model, such as the graphs that torch makes of it, prepare equal weights. Code that
makes a large read-only array looks here for an equal one that is in use. References are weak, so an
array is freed with its last user.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, TypeAlias
from weakref import ref

import numpy as np

from clew.support.addresses import address_of

Array: TypeAlias = "np.ndarray[Any, Any]"
_Key: TypeAlias = "tuple[tuple[int, ...], np.dtype[Any], bytes]"

# Bytes compared at a time, so that comparing arrays that differ stops early.
_BLOCK_BYTES: Final = 1 << 20
# Sampled elements in the key of an array, spread over it.
_SAMPLES: Final = 64
# Numeric dtypes, including those of `ml_dtypes` (V); no strings and no objects.
_KINDS: Final = "biufcV"


def shared(array: Array) -> Array:
    """Returns an equal array that is in use, or else `array`, which later calls then share. Its
    memory becomes read-only: a caller that passes a writable array gives up ownership.

    An array that does not own its memory (mapped files, other libraries), or that may still be
    written to (a read-only view of a writable array), can be replaced by a shared one, but is not
    shared itself.
    """
    found = in_use(array)
    if found is not None:
        return found
    owner = _owner(array)
    if not _is_comparable(array) or not owner.flags.owndata:
        return array
    if owner.flags.writeable and not array.flags.writeable:
        return array
    owner.flags.writeable = False
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    _keep(_key(array), array)
    return array


def in_use(array: Array) -> Array | None:
    """Returns a shared array with the same bytes, shape and dtype; None if none is in use."""
    if not _is_comparable(array):
        return None
    known = _known.get(_key(array))
    found = None if known is None else known()
    return found if found is not None and same_bytes(found, array) else None


def same_bytes(a: Array, b: Array) -> bool:
    """Whether two contiguous arrays hold the same bytes; NaN equals itself, -0 differs from 0."""
    if not (a.flags.c_contiguous and b.flags.c_contiguous) or a.nbytes != b.nbytes:
        return False
    mine, other = (x.reshape(-1).view(np.uint8) for x in (a, b))
    return all(
        np.array_equal(mine[n : n + _BLOCK_BYTES], other[n : n + _BLOCK_BYTES])
        for n in range(0, mine.size, _BLOCK_BYTES)
    )


def content_digest(array: Array) -> bytes:
    """Returns the SHA-256 of a contiguous array's bytes. It is computed once for large arrays that
    own read-only memory, such as those from `shared`.
    """
    owner = _owner(array)
    is_fixed = owner.flags.owndata and not owner.flags.writeable
    if array.nbytes < _BLOCK_BYTES or not is_fixed:
        return sha256(array.data).digest()
    place = address_of(array), array.nbytes
    known = _digests.get(place)
    if known is not None and known[0]() is owner:
        return known[1]
    digest = sha256(array.data).digest()
    _digests[place] = ref(owner, lambda gone: _forget(place, gone)), digest
    return digest


def _forget(place: tuple[int, int], gone: ref[Array]) -> None:
    known = _digests.get(place)
    if known is not None and known[0] is gone:
        _digests.pop(place, None)


def _owner(array: Array) -> Array:
    """Returns the array that owns the memory of a view."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _is_comparable(array: Array) -> bool:
    return bool(array.size and array.flags.c_contiguous and array.dtype.kind in _KINDS)


def _key(array: Array) -> _Key:
    elements = array.reshape(-1)
    step = elements.size // _SAMPLES | 1  # odd, to sample other columns of rows of a power of two
    return array.shape, array.dtype, elements[::step].tobytes()


def _keep(key: _Key, array: Array) -> None:
    def forget(gone: ref[Array]) -> None:
        if _known.get(key) is gone:
            _known.pop(key, None)

    _known[key] = ref(array, forget)


# Needs no lock, because each step is atomic: if two threads add equal arrays at once, the later one
# is shared.
_known: Final[dict[_Key, ref[Array]]] = {}
_digests: Final[dict[tuple[int, int], tuple[ref[Array], bytes]]] = {}  # by address and bytes
