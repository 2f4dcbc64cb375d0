"""What holds something until it is closed. Standard library only: the janitor uses it."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Closed at the end of its `with` block."""

    @abstractmethod
    def close(self) -> object:
        """Let go of what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
