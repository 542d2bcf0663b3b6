"""Pickles that hold plain values and numpy arrays: read without ever running code from the file."""

from __future__ import annotations

import io
import pickle
from typing import Any

from sweeper.checks import RequestError


class _Record(dict[Any, Any]):
    """A mapping with attributes, as scikit-learn's Bunch: its contents are kept, its own state is not."""

    def __setstate__(self, state: object) -> None:
        """Nothing: a state would set attributes that the file chooses."""


def _names() -> dict[tuple[str, str], Any]:
    """What a file may name: parts of numpy arrays and a plain record. None of these runs what the file says."""
    import codecs

    import numpy as np
    from numpy._core import multiarray, numeric

    arrays = {("numpy", "ndarray"): np.ndarray, ("numpy", "dtype"): np.dtype, ("_codecs", "encode"): codecs.encode}
    for core in ("core", "_core"):  # numpy's name for itself, before and since version 2
        arrays[f"numpy.{core}.multiarray", "_reconstruct"] = multiarray._reconstruct
        arrays[f"numpy.{core}.numeric", "_frombuffer"] = numeric._frombuffer
    return {**arrays, ("sklearn.utils", "Bunch"): _Record, ("sklearn.utils._bunch", "Bunch"): _Record}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _names()[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"names {module}.{name}") from None


def read_pickle(content: bytes, what: str, encoding: str = "latin1") -> Any:
    """The value in a pickle. `what`: how the file is called in an error, which quotes nothing of it.

    Raises:
      RequestError: no pickle, or one that names anything but plain values and arrays.
    """
    try:
        return _Unpickler(io.BytesIO(content), encoding=encoding).load()
    except Exception as error:  # a broken pickle raises nearly anything
        raise RequestError(f"{what}: is not a pickle of plain values and arrays ({type(error).__name__})") from None
