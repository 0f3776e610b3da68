"""Records of algorithms, nets and memories, and the registries that find them by name.

A record holds plain data, and the class that does the work as text, so that a spec is read and
checked without torch. Adding one is adding a file: a registry finds every module of its package.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeVar

from slm_lab.spec.block import Block

BlockT = TypeVar("BlockT", bound=Block)


@dataclass(frozen=True)
class Record(Generic[BlockT]):
    """Base of all records: names, spec class, and where the implementation is."""

    name: str  # as a spec writes it
    spec_class: type[BlockT]
    implementation: str  # "module:Class", imported when an agent is made
    _: KW_ONLY
    aliases: tuple[str, ...] = ()  # other names
    order: int = 100  # place in legends, tables and pages; equal ones go by name

    def load(self) -> Any:
        """Import the implementation."""
        module, _, attribute = self.implementation.partition(":")
        return getattr(importlib.import_module(module), attribute)


RecordT = TypeVar("RecordT", bound=Record[Any])


class Registry(Mapping[str, RecordT]):
    """Mapping from names to the records in `RECORDS` of all modules of one package.

    Iterating gives each record's own name, in the order of the records. Looking up also takes
    aliases and, with `any_spelling`, names whose case, `-`, `_` or spaces differ. `chosen_by` is
    the key of a spec's block that names the record.
    """

    def __init__(
        self, package: str, path: list[str], chosen_by: str = "name", any_spelling: bool = False
    ) -> None:
        self.chosen_by = chosen_by
        self._key: Callable[[str], str] = _folded if any_spelling else str
        modules = [f"{package}.{module.name}" for module in pkgutil.iter_modules(path)]
        found: list[RecordT] = [
            record
            for module in modules
            for record in getattr(importlib.import_module(module), "RECORDS", ())
        ]
        found.sort(key=lambda record: (record.order, record.name))
        self._records = {record.name: record for record in found}
        self._names = {
            self._key(name): record.name
            for record in found
            for name in (*record.aliases, record.name)
        }

    def find(self, name: object) -> RecordT | None:
        """The record that a spec's `name` or `type` picks; None if there is none."""
        own = self._names.get(self._key(name)) if isinstance(name, str) else None
        return None if own is None else self._records[own]

    def spec_classes(self) -> list[type[Block]]:
        """The spec classes of all records, each once."""
        return list(dict.fromkeys(record.spec_class for record in self._records.values()))

    def keys_of_specs(self) -> frozenset[str]:
        """Every key that means something to any of the spec classes."""
        return frozenset().union(*(model.model_fields for model in self.spec_classes()))

    def __getitem__(self, name: str) -> RecordT:
        record = self.find(name)
        if record is None:
            raise KeyError(name)
        return record

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


def _folded(name: str) -> str:
    return name.lower().translate(str.maketrans("", "", "-_ "))
