"""Records of algorithms, nets and memories, and the registries that find them by name.

A record holds plain data, and the class that does the work as text, so that a spec is read and
checked without torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, TypeVar

from pydantic import PrivateAttr

from slm_lab.spec.block import Block

BlockT = TypeVar("BlockT", bound=Block)


@dataclass(frozen=True)
class Record(Generic[BlockT]):
    """Base of all records: names, spec class, and where the implementation is."""

    name: str  # as a spec writes it
    spec_class: type[BlockT]
    # "module:Class", imported when an agent is made. A class of the user's own leaves it out; it is
    # empty where that class may not be imported.
    implementation: str = ""
    _: KW_ONLY
    aliases: tuple[str, ...] = ()  # other names

    def load(self) -> Any:
        """Import the implementation."""
        if self.implementation == self.name:
            return imported_object(self.name)
        module, _, attribute = self.implementation.partition(":")
        return getattr(importlib.import_module(module), attribute)


def imported_object(name: str) -> Any:
    """What `module:Attribute` of the user's own names. Its module was imported when the spec was
    built, by the one function that asks whether it may be (`trust.py`); here nothing is."""
    module, _, attribute = name.rpartition(":")
    return getattr(sys.modules[module], attribute)


RecordT = TypeVar("RecordT", bound=Record[Any])


class Registry(Mapping[str, RecordT]):
    """Mapping from names to records; iterating gives each record's own name.

    Looking up also takes aliases and, with `any_spelling`, names whose case, `-`, `_` or spaces
    differ. `chosen_by` is the key of a spec's block that names the record.
    """

    def __init__(
        self, records: Iterable[RecordT], chosen_by: str = "name", any_spelling: bool = False
    ) -> None:
        self.chosen_by = chosen_by
        self._key: Callable[[str], str] = _folded if any_spelling else str
        self._records = {record.name: record for record in records}
        self._found = {
            self._key(name): record
            for record in self._records.values()
            for name in (*record.aliases, record.name)
        }

    def find(self, name: object) -> RecordT | None:
        """The record that a spec's `name` or `type` picks; None if there is none."""
        return self._found.get(self._key(name)) if isinstance(name, str) else None

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


class RecordedBlock(Block):
    """A block whose `name` or `type` picks a record; it keeps that of a class of the user's own."""

    _own_record: Any = PrivateAttr(default=None)

    def record_in(self, registry: Registry[RecordT]) -> RecordT:
        """The record that this block was built by."""
        own: RecordT | None = self._own_record
        return own or registry[getattr(self, registry.chosen_by)]


def _folded(name: str) -> str:
    return name.lower().translate(str.maketrans("", "", "-_ "))
