"""A digest of anything that a training procedure refers to, by content: the same in every process.

Functions and classes of the user count by their code and by all that it refers to: globals, closures, defaults,
attributes of modules, imports inside. Objects count by their class and by the state that would be sent to a worker
process, arrays and tensors by their numbers, sets in no order. Code of libraries counts by its name; ``libraries``
collects their versions. What has no content that can be told (an open file, a lock, a generator) is refused.

The references among these may be circular: a method refers to its class, a function to itself. Digests are therefore
made as Tarjan's algorithm walks a graph: what belongs to a cycle stays on a stack until the cycle's first node is
finished, and a reference back to the stack counts as the distance to it. So a digest does not depend on the way by
which a value was reached, nor on what was visited before.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import json
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from noshadow.errors import InputError
from noshadow.shadow.instructions import instructions, signature
from noshadow.shadow.libraries import compiled_digest, library_of_file, library_of_module, library_version
from noshadow.shadow.references import patches, references, resolves_to

__all__ = ["Content", "Unknowable", "array_digest"]

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented))
_ABOUT_A_CLASS = {
    *("__doc__", "__module__", "__qualname__", "__dict__", "__weakref__", "__annotations__", "__annotate__"),
    *("__annotate_func__", "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__match_args__"),
    *("__dataclass_fields__", "__dataclass_params__", "__orig_bases__", "__parameters__", "__type_params__"),
    *("_abc_impl", "__abstractmethods__"),
}
"""What a class has that its methods and attributes do not say, or say already."""
_ABOUT_AN_OBJECT = {"_name_or_path", "_commit_hash", "transformers_version", "_sklearn_version", "_stop_words_id"}
"""Attributes by which transformers and scikit-learn note where and when an object was made."""


class Unknowable(InputError):
    """Something has no content that can be told; the message says what and where."""


def array_digest(array: Any) -> str:
    """Type, shape and SHA-256 of an array's numbers."""
    values = np.ascontiguousarray(np.asarray(array))
    digest = hashlib.sha256(f"{values.dtype.str} {values.shape}".encode())
    if values.dtype.names:  # field by field: between them may lie bytes that mean nothing
        digest.update(" ".join(array_digest(values[name]) for name in values.dtype.names).encode())
    elif values.dtype.hasobject:
        digest.update(Content().digest(values.tolist()).encode())
    else:
        digest.update(values.tobytes())
    return f"{values.dtype}{list(values.shape)} {digest.hexdigest()[:16]}"


class Content:
    """Digests of values, and ``libraries``: the versions of all libraries met on the way."""

    def __init__(self) -> None:
        self.libraries: dict[str, str] = {}
        self._closed: dict[int, str] = {}
        self._cycles: dict[int, list[int]] = {}  # all values of the finished cycle that a value is part of
        self._open: list[int] = []  # values that are not finished, or whose cycle is not
        self._stack: dict[int, int] = {}  # position of each value of an unfinished cycle
        self._lowest = 0  # position up to which the value at hand refers back
        self._at = 0  # position of the value at hand
        self._trail: list[str] = []
        self._alive: list[Any] = []  # an id stands for a value only as long as that lives

    def digest(self, value: Any) -> str:
        """The digest of a value, in hexadecimal."""
        try:
            return _hash(self._visit(value))
        except RecursionError:
            raise Unknowable("is nested too deeply") from None

    def shown(self, value: Any, name: str = "") -> Any:
        """A value as people read it in a comparison: numbers and names as they are, else the kind and the digest."""
        if value is None or (type(value) in (bool, int, float, str) and len(str(value)) <= 80):
            return value
        if type(value) is np.ndarray:  # a subclass holds more than numbers: a mask, for one
            return array_digest(value)
        with self._inside(name):
            digest = self.digest(value)
        named = value if isinstance(value, types.FunctionType | type) else type(value)
        return f"{'function ' if isinstance(value, types.FunctionType) else ''}{named.__qualname__} {digest[:16]}"

    def uses(self, function: types.FunctionType) -> dict[str, Any]:
        """All that a user's function refers to, by name."""
        found, libraries = references(function)
        for library in libraries:
            self._note(library)
        return found

    @contextmanager
    def _inside(self, name: str) -> Iterator[None]:
        self._trail += [name] if name else []
        yield  # not undone after an error, so that it can say where it was
        del self._trail[len(self._trail) - bool(name) :]

    def _visit(self, value: Any, name: str = "") -> Any:
        """What stands for the value in the digest of what holds it."""
        if type(value) in _ATOMS:
            return [type(value).__name__, repr(value)]
        key = id(value)
        if key in self._closed:
            return self._closed[key]
        if key in self._stack:
            self._lowest = min(self._lowest, self._stack[key])
            return ["back", self._at - self._stack[key]]
        outer, position, first = (self._lowest, self._at), len(self._stack), len(self._open)
        self._stack[key] = self._lowest = self._at = position
        self._alive.append(value)
        self._open.append(key)
        # a cycle that was entered elsewhere is walked anew from here, as if it had not been met before
        met = {part: self._closed.pop(part) for part in self._cycles.get(key, ()) if part in self._closed}
        with self._inside(name):
            digest = _hash(self._parts(value))
        if self._lowest == position:  # nothing in it refers to what is above it
            self._cycles |= dict.fromkeys(self._open[first:], self._open[first:])
            del self._open[first:]
            self._unwind(position)
            self._closed[key] = digest
        self._closed |= met
        self._lowest, self._at = min(outer[0], self._lowest), outer[1]
        return digest

    def _unwind(self, position: int) -> None:
        while len(self._stack) > position:
            self._stack.popitem()

    def _parts(self, value: Any) -> Any:
        if (way := self._EXACT.get(type(value))) is not None:
            return way(self, value)
        for kinds, way in self._WAYS.items():
            if isinstance(value, kinds):
                return way(self, value)
        for library in {base.__module__.partition(".")[0]: None for base in type(value).__mro__}:
            way = self._WAYS_OF_LIBRARIES.get(library)
            if way is not None and (found := way(self, value)) is not None:
                return found
        return self._object(value)

    def _sequence(self, value: Iterable[Any]) -> Any:
        items = list(value)
        return [type(value).__name__, *(self._visit(item, f"[{place}]") for place, item in enumerate(items))]

    def _mapping(self, value: Mapping[Any, Any]) -> Any:
        return ["mapping", *([self._visit(key), self._visit(inner, str(key))] for key, inner in value.items())]

    def _set(self, value: Iterable[Any]) -> Any:
        """The elements' digests, sorted; each is visited as if it were the only one, as they come in any order."""
        found: list[str] = []
        position = len(self._stack)
        for item in value:
            found.append(_hash(self._visit(item)))
            self._unwind(position)
        return ["set", self._visit(type(value)), self._visit(_own_attributes(value)), *sorted(found)]

    def _function(self, function: types.FunctionType) -> Any:
        library = library_of_file(function.__code__.co_filename)
        if library is None:
            uses = self.uses(function)
        else:
            self._note(library)
            if library_of_module(function.__module__) and resolves_to(function.__module__, function):
                return ["named", function.__module__, function.__qualname__]
            cells = enumerate(function.__closure__ or ())  # of a decorator: the user's function is in there
            uses = {f"{place}": cell.cell_contents for place, cell in cells}
        parts = [[name, self._visit(value, name)] for name, value in uses.items()]
        return ["function", self._visit(function.__code__), *parts]

    def _code(self, code: types.CodeType) -> Any:
        self._note("python")
        steps = ([name, self._visit(value) if constant else value] for name, value, constant in instructions(code))
        return ["code", signature(code), *steps]

    def _class(self, kind: type) -> Any:
        if library := library_of_module(kind.__module__):
            self._note(library)
            made = () if resolves_to(kind.__module__, kind) else kind.__bases__  # by a library, out of others
            patched = [[name, self._visit(value, name)] for name, value in patches(kind).items()]
            return ["named", kind.__module__, kind.__qualname__, *(self._visit(base) for base in made), *patched]
        members = {name: value for name, value in sorted(vars(kind).items()) if name not in _ABOUT_A_CLASS}
        return [
            *("class", kind.__qualname__, compiled_digest(kind.__module__), self._visit(type(kind))),
            [self._visit(base) for base in kind.__bases__],
            [[name, self._visit(value, name)] for name, value in members.items()],
        ]

    def _module(self, module: types.ModuleType) -> Any:
        if library := library_of_module(module):
            self._note(library)
            return ["named", module.__name__]
        own = {name: value for name, value in vars(module).items() if not name.startswith("__")}
        return ["module", *([name, self._visit(value, name)] for name, value in sorted(own.items()))]

    def _method(self, method: Any) -> Any:
        return ["method", self._visit(method.__func__), self._visit(method.__self__)]

    def _built_in(self, function: Any) -> Any:
        owner = function.__self__
        if owner is None or isinstance(owner, types.ModuleType):
            return self._named(function)
        return ["method", function.__name__, self._visit(owner)]

    def _named(self, value: Any) -> Any:
        """A function of C, or a descriptor: it has a name and a library."""
        module = getattr(value, "__module__", None) or getattr(value, "__objclass__", type(value)).__module__
        name = getattr(value, "__qualname__", value.__name__)
        if library := library_of_module(module):
            self._note(library)
            return ["named", module, name]
        return ["named", compiled_digest(module), name]

    def _wrapper(self, value: Any) -> Any:
        """A property, a static method, a cache and their like: the functions inside."""
        names = ("fget", "fset", "fdel", "func", "__func__", "__wrapped__")
        inner = {name: getattr(value, name) for name in names if getattr(value, name, None) is not None}
        return ["wrapper", type(value).__name__, *([name, self._visit(one)] for name, one in inner.items())]

    def _enum(self, member: enum.Enum) -> Any:
        return ["enum", self._visit(type(member)), member.name, self._visit(member.value)]

    def _array(self, array: Any) -> Any:
        values = np.asarray(array)
        mask = [array_digest(np.ma.getmaskarray(array))] if isinstance(array, np.ma.MaskedArray) else []
        if values.dtype.hasobject:
            return ["array", str(values.dtype), list(values.shape), self._visit(values.tolist()), *mask]
        return ["array", self._visit(type(array)), self._visit(_own_attributes(array)), array_digest(values), *mask]

    def _numpy(self, value: Any) -> Any:
        return ["process-wide generator"] if value is _global_generator("numpy.random.mtrand", "_rand") else None

    def _random(self, value: Any) -> Any:
        return ["process-wide generator"] if value is _global_generator("random", "_inst") else None

    def _sparse(self, value: Any) -> Any:
        """By its entries: a matrix notes on itself, when it is used, whether it found them sorted."""
        if not sys.modules["scipy.sparse"].issparse(value):
            return None
        entries = value.tocoo()
        positions = [array_digest(axis) for axis in (entries.row, entries.col)]
        return ["sparse", type(value).__name__, list(value.shape), array_digest(entries.data), positions]

    def _frame(self, value: Any) -> Any:
        """By labels, types and values, not by the blocks and caches that these happen to be in."""
        pandas = sys.modules["pandas"]
        self._note("pandas")
        if isinstance(value, pandas.DataFrame):
            columns = [self._visit(value.iloc[:, place]) for place in range(value.shape[1])]
            return ["frame", self._visit(value.index), self._visit(value.columns), *columns]
        if isinstance(value, pandas.MultiIndex):
            return ["index", self._visit(list(value.names)), self._visit(value.to_list())]
        if not isinstance(value, pandas.Series | pandas.Index):
            return None
        index = self._visit(value.index) if isinstance(value, pandas.Series) else None
        facts = [type(value).__name__, self._visit(value.name), self._visit(value.dtype), index]
        return [*facts, self._array(value.to_numpy())]

    def _torch(self, value: Any) -> Any:
        torch = sys.modules["torch"]
        self._note("torch")
        if isinstance(value, torch.Generator):
            is_global = value is torch.default_generator
            return ["process-wide generator"] if is_global else ["generator", self._visit(value.get_state())]
        if not isinstance(value, torch.Tensor):
            return None
        if value.is_nested:
            return ["nested tensor", *(self._visit(part) for part in value.unbind())]
        facts = ["tensor", str(value.dtype), list(value.shape), value.requires_grad, self._visit(type(value))]
        if value.layout != torch.strided:
            entries = value.detach().to_sparse_coo().coalesce()
            return [*facts, self._visit(entries.indices()), self._visit(entries.values())]
        if value.is_quantized:
            return [*facts, self._visit(value.detach().int_repr()), self._visit(value.detach().dequantize())]
        # a copy of its own: conjugate, negated and strided views have no bytes in order
        numbers = torch.empty(value.numel(), dtype=value.dtype).view(value.shape).copy_(value.detach())
        return [*facts, hashlib.sha256(numbers.flatten().view(torch.uint8).numpy().data).hexdigest()]

    def _object(self, value: Any) -> Any:
        """Class and state, in the way in which an object says what it is to be sent as."""
        kind = type(value)
        try:
            reduce: Callable[[Any], Any] | None = copyreg.dispatch_table.get(kind)
            found = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception as error:
            if not isinstance(value, getattr(sys.modules.get("torch.nn"), "Module", ())):
                raise self._refusal(value) from error
            found = kind, (), vars(value)  # a network with weight normalisation, for one, refuses to be sent
        if isinstance(found, str):  # one of its kind, known by its name
            compiled = compiled_digest(getattr(value, "__module__", None))
            return ["named", self._visit(kind), found, self._visit(_own_attributes(value)), compiled]
        build, arguments, state, items, pairs = (*tuple(found), None, None, None)[:5]
        return [
            *("object", self._visit(kind), self._visit(build), self._sequence(arguments)),
            self._state(kind, state),
            None if items is None else self._sequence(list(items)),
            None if pairs is None else self._mapping(dict(pairs)),
        ]

    def _state(self, kind: type, state: Any) -> Any:
        """The attributes, without what was computed from them and without notes of where and when."""
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):  # the second are the slots
            return [self._state(kind, state[0]), self._state(kind, state[1])]
        if not isinstance(state, dict):
            return self._visit(state)
        computed = {name for base in kind.__mro__ for name, value in vars(base).items() if _is_cache(value)}
        kept = {name: value for name, value in state.items() if name not in computed | _ABOUT_AN_OBJECT}
        return self._mapping(
            {name: list(value.values()) if _is_hooks(name, value) else value for name, value in kept.items()}
        )

    def _refusal(self, value: Any) -> Unknowable:
        kind = type(value)
        where = " › ".join(self._trail)
        what = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        return Unknowable(f"{where + ': ' if where else ''}a {what} has no content that can be told")

    def _note(self, library: str) -> None:
        if library != "noshadow":  # its trainers say themselves when they train otherwise than before
            self.libraries[library] = library_version(library)

    _WAYS: Mapping[Any, Callable[[Content, Any], Any]] = {
        enum.Enum: _enum,
        type: _class,
        types.FunctionType: _function,
        types.MethodType: _method,
        types.BuiltinFunctionType: _built_in,
        (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType): _named,
        (types.GetSetDescriptorType, types.MemberDescriptorType): _named,
        types.ModuleType: _module,
        types.CodeType: _code,
        (property, staticmethod, classmethod, functools.cached_property, functools._lru_cache_wrapper): _wrapper,
        (set, frozenset): _set,
        (np.ndarray, np.generic): _array,
    }
    _EXACT: Mapping[type, Callable[[Content, Any], Any]] = {
        **dict.fromkeys((list, tuple), _sequence),
        **dict.fromkeys((dict, types.MappingProxyType), _mapping),
    }
    _WAYS_OF_LIBRARIES: Mapping[str, Callable[[Content, Any], Any]] = {
        "numpy": _numpy,
        "random": _random,
        "scipy": _sparse,
        "pandas": _frame,
        "torch": _torch,
    }


def _hash(parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _own_attributes(value: Any) -> Any:
    """What an object of a user's class has beside what its library's base class holds."""
    return None if library_of_module(type(value).__module__) else getattr(value, "__dict__", None)


def _is_cache(value: Any) -> bool:
    return isinstance(value, functools.cached_property)


def _is_hooks(name: Any, value: Any) -> bool:
    """The hooks of a torch module, which are numbered through the process."""
    return isinstance(value, dict) and str(name).endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called"))


def _global_generator(module: str, name: str) -> Any:
    return getattr(sys.modules.get(module), name, None)
