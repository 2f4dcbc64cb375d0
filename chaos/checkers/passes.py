"""The passes over rows that the checks are made of, and which of two forms is used.

A run of a million rows has to be judged in seconds, so the passes exist on NumPy arrays; and NumPy
is an extra, so they exist in plain Python too. Both give the same lists of positions, which a
property test holds them to; everything else of a check is written once, on top of them. Sorts are
stable and numbers are exact in both. Source: chaos.md 2.9.
"""

import importlib
import importlib.util
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, cast

Column = Any
"""A column of 64-bit integers: `numpy.ndarray`, or a list in the plain form."""


class Passes(Protocol):
    """What both forms offer. Positions are counted from 0 and returned in rising order."""

    def column(self, values: Sequence[int]) -> Column:
        """A column of these values, without a copy where that is possible."""

    def where(self, column: Column, allowed: Iterable[int]) -> Column:
        """Positions of the values that are among `allowed`, as a column."""

    def known(self, column: Column) -> Column:
        """Positions of values that are not negative, as a column."""

    def take(self, column: Column, positions: Column) -> Column:
        """The values at these positions."""

    def join(self, columns: Sequence[Column]) -> Column:
        """One column behind the other."""

    def pack(self, queues: Column, offsets: Column) -> Column:
        """Queue number and offset as one key each (`keys.pack`); -1 where either is negative."""

    def combine(self, high: Column, middle: Column, low: Column) -> Column:
        """Three small non-negative numbers as one: 20, 20 and 20 bits; -1 where one is negative."""

    def missing(self, values: Column, present: Column) -> list[int]:
        """Positions of values that are not among `present`."""

    def found(self, values: Column, wanted: Column) -> list[int]:
        """Positions of values that are among `wanted`."""

    def lookup(self, keys: Column, known: Column, values: Column, default: int) -> Column:
        """For each key the value that stands beside its first occurrence in `known`."""

    def unequal(self, one: Column, other: Column) -> list[int]:
        """Positions where the columns differ."""

    def below(self, one: Column, other: Column) -> list[int]:
        """Positions where the value of `one` is less than that of `other`."""

    def above(self, column: Column, limit: int) -> list[int]:
        """Positions of values greater than a limit."""

    def record_ends(self, said: Column, places: Column, sizes: Column, lengths: Column) -> Column:
        """Where records end: from where they stand (as said, else as found) and their sizes; an
        unknown size is the body's length and the least that a record has besides. -1: unknown."""

    def step(self, times: Column, values: Column, moments: Column) -> Column:
        """The value of a step function at moments; `times` rise, 0 before the first."""

    def reached(self, levels: Sequence[Column], goals: Column) -> Column:
        """For each goal how many of the columns are not below it."""

    def choose(self, numbers: Column, columns: Sequence[Column]) -> Column:
        """At each position the value of the column with that number."""

    def repeated(self, values: Column) -> list[list[int]]:
        """Positions of each value that stands more than once; by their first position."""

    def conflicts(self, keys: Column, values: Column) -> list[tuple[int, int]]:
        """For each key (not -1) with different values: its first position, and the first one with
        another value."""

    def overtaken(
        self, queues: Column, begins: Column, ends: Column, offsets: Column
    ) -> list[tuple[int, int]]:
        """Pairs (a, b) of one queue where a ended before b began, and yet offset(a) >= offset(b).

        For each b at most one a, the one with the greatest offset (the first to end of several).
        """

    def between(self, lows: Column, highs: Column, keys: Column) -> Column:
        """For each pair how many of the `keys` lie strictly between the two."""

    def edges(self, groups: Column) -> tuple[list[int], list[int]]:
        """Positions of the first and of the last of each group (not -1), by group's first."""

    def staleness(self, keys: Column, times: Column, asked: Column, moments: Column) -> Column:
        """For each asked key: its moment less the time at which a greater key of the same queue
        was first known (`times` of `keys`); 0 where none was, or later."""

    def neighbours(self, groups: Column) -> Column:
        """For each position the one before it in the same group; -1 for the first and for group
        -1."""


def choose(*, plain: bool = False) -> Passes:
    """The NumPy form when NumPy is installed, else (or when asked for) the plain one."""
    name = "plain" if plain or importlib.util.find_spec("numpy") is None else "numeric"
    return cast("Passes", importlib.import_module(f"rocketbed.chaos.checkers.{name}"))
