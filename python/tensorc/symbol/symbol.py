"""The class ``Symbol``, and applications of operators."""

from __future__ import annotations

import html
import numbers
import os
from typing import Any

import numpy as np

from .. import _tensorc, context, operators
from ..arithmetic import OPERATORS, Arithmetic
from ..base import MXNetError, dtype_name, extents, text

#: The numbers of element types in MXNet's files.
_DTYPES = {
    "float32": 0,
    "float64": 1,
    "float16": 2,
    "uint8": 3,
    "int32": 4,
    "int8": 5,
    "int64": 6,
    "bool": 7,
    "bfloat16": 12,
}


def apply(
    operator: str, args: tuple, kwargs: dict[str, Any], name: str | None = None, attr: dict[str, str] | None = None
) -> Symbol:
    """Applies an operator. Symbols among the arguments are its operands, everything else its parameters."""
    given = operators.Arguments(operator, args, kwargs, lambda value: isinstance(value, Symbol))
    handle = _tensorc.Symbol.apply(
        operator,
        name,
        [operand._handle for operand in given.operands],
        {key: operand._handle for key, operand in given.named.items()},
        given.parameters,
        {key: text(value) for key, value in (attr or {}).items()},
    )
    return Symbol(handle)


class Symbol(Arithmetic):
    """Outputs of a network of operators and variables."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    @property
    def name(self) -> str | None:
        return self._handle.name

    def __repr__(self) -> str:
        return f"<Symbol {self.name or 'Grouped'}>"

    def _repr_html_(self) -> str:
        sides = [
            ("arguments", self.list_arguments()),
            ("states", self.list_auxiliary_states()),
            ("outputs", self.list_outputs()),
        ]
        rows = "".join(
            f"<tr><th>{side}</th><td>{html.escape(', '.join(names))}</td></tr>" for side, names in sides if names
        )
        return f"<table>{rows}</table>"

    def __len__(self) -> int:
        return len(self._handle)

    def __iter__(self) -> Any:
        return (self[position] for position in range(len(self)))

    def __getitem__(self, key: int | str) -> Symbol:
        if isinstance(key, str):
            return Symbol(self._handle.output_named(key))
        if not -len(self) <= key < len(self):
            raise IndexError(f"output {key} of a symbol with {len(self)}")
        return Symbol(self._handle.output(key % len(self)))

    def __call__(self, *args: Symbol, name: str | None = None, **kwargs: Symbol) -> Symbol:
        """The symbol with others in place of its variables."""
        if args:
            kwargs |= dict(zip(self.list_arguments(), args))
        return Symbol(self._handle.composed({key: value._handle for key, value in kwargs.items()}))

    def get_internals(self) -> Symbol:
        return Symbol(self._handle.internals())

    def get_children(self) -> Symbol | None:
        handle = self._handle.children()
        return None if handle is None else Symbol(handle)

    def list_arguments(self) -> list[str]:
        return self._handle.list_arguments()

    def list_outputs(self) -> list[str]:
        return self._handle.list_outputs()

    def list_auxiliary_states(self) -> list[str]:
        return self._handle.list_auxiliary_states()

    def list_inputs(self) -> list[str]:
        return self._handle.list_inputs()

    def attr(self, key: str) -> str | None:
        return self._handle.attr(key)

    def list_attr(self) -> dict[str, str]:
        return self._handle.list_attr()

    def attr_dict(self) -> dict[str, dict[str, str]]:
        return self._handle.attr_dict()

    def infer_shape(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """Shapes of arguments, outputs and auxiliary states; ``None`` for each if they do not follow."""
        given = dict(zip(self.list_arguments(), args)) | kwargs
        inferred = self._handle.infer_shape(
            {name: extents(shape) for name, shape in given.items() if shape is not None}
        )
        if inferred is None:
            return None, None, None
        arguments, outputs, states = ([tuple(shape) for shape in shapes] for shapes in inferred)
        return arguments, outputs, states

    def infer_type(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """Element types of arguments, outputs and auxiliary states; ``None`` for each if they do not follow."""
        given = dict(zip(self.list_arguments(), args)) | kwargs
        inferred = self._handle.infer_type(
            {name: dtype_name(dtype) for name, dtype in given.items() if dtype is not None}
        )
        if inferred is None:
            return None, None, None
        of = lambda names: [name if name == "bfloat16" else np.dtype(name).type for name in names]
        arguments, outputs, states = (of(names) for names in inferred)
        return arguments, outputs, states

    def tojson(self) -> str:
        return self._handle.to_json()

    def save(self, fname: str | os.PathLike[str]) -> None:
        self._handle.save(fname)

    def simple_bind(
        self, ctx: Any = None, grad_req: Any = "write", type_dict: dict | None = None, **kwargs: Any
    ) -> Any:
        """Binds the symbol to new arrays in the shapes that follow from the given ones."""
        from ..executor import Executor

        context.checked(ctx)
        return Executor._simple(self, grad_req, type_dict or {}, kwargs)

    def bind(
        self, ctx: Any = None, args: Any = None, args_grad: Any = None, grad_req: Any = "write", aux_states: Any = None
    ) -> Any:
        """Binds the symbol to arrays."""
        from ..executor import Executor

        context.checked(ctx)
        return Executor._bound(self, args, args_grad, grad_req, aux_states)

    def eval(self, ctx: Any = None, **kwargs: Any) -> list[Any]:
        """The outputs for arrays by name."""
        return self.bind(ctx, kwargs, grad_req="null").forward()

    @staticmethod
    def _binary(name: str, left: Any, right: Any) -> Symbol:
        between, at_right, at_left = OPERATORS[name]
        if isinstance(right, numbers.Real):
            return apply(at_right, (left,), {"scalar": float(right)})
        if isinstance(left, numbers.Real):
            return apply(at_left, (right,), {"scalar": float(left)})
        if not isinstance(left, Symbol) or not isinstance(right, Symbol):
            found = f"{type(left).__name__} and {type(right).__name__}"
            raise MXNetError(f"`{between}` takes symbols and numbers, {found} were given")
        return apply(between, (left, right), {})

    @staticmethod
    def _unary(name: str, operand: Symbol) -> Symbol:
        return apply(name, (operand,), {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or operators.parameters(name) is None:
            raise AttributeError(f"'Symbol' object has no attribute '{name}'")
        return lambda *args, name=None, operator=name, **kwargs: apply(operator, (self, *args), kwargs, name)


def var(
    name: str,
    attr: dict[str, str] | None = None,
    shape: Any = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    dtype: Any = None,
    init: Any = None,
    stype: str | None = None,
    **kwargs: str,
) -> Symbol:
    """A variable, with what it says about itself."""
    stated = {
        "__shape__": None if shape is None else text(tuple(extents(shape))),
        "__lr_mult__": None if lr_mult is None else text(lr_mult),
        "__wd_mult__": None if wd_mult is None else text(wd_mult),
        "__dtype__": None if dtype is None else str(_DTYPES[dtype_name(dtype)]),
        "__init__": None if init is None else init if isinstance(init, str) else init.dumps(),
    }
    attributes = {key: text(value) for key, value in {**(attr or {}), **kwargs, **stated}.items() if value is not None}
    return Symbol(_tensorc.Symbol.variable(name, attributes))


Variable = var


def Group(symbols: Any) -> Symbol:
    """The outputs of several symbols as one symbol."""
    return Symbol(_tensorc.group([symbol._handle for symbol in symbols]))


def load_json(json_str: str) -> Symbol:
    return Symbol(_tensorc.symbol_from_json(json_str))


fromjson = load_json


def load(fname: str | os.PathLike[str]) -> Symbol:
    with open(fname, encoding="utf-8") as file:
        return load_json(file.read())


def zeros(shape: Any, dtype: Any = None, **kwargs: Any) -> Symbol:
    return apply("_zeros", (), {"shape": tuple(extents(shape)), "dtype": dtype_name(dtype), **kwargs})


def ones(shape: Any, dtype: Any = None, **kwargs: Any) -> Symbol:
    return apply("_ones", (), {"shape": tuple(extents(shape)), "dtype": dtype_name(dtype), **kwargs})
