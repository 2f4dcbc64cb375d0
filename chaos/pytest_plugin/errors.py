"""What a test of a user is told when something cannot be, or did not come to be."""


class TestingError(Exception):
    """A wrong use of the plugin; the message says what to do."""

    __test__ = False


class UnknownFault(TestingError, AttributeError):
    """A fault of `chaos` that there is not."""


class NotReady(TestingError):
    """Something was used before the body of the test began."""


class ClusterFailed(TestingError):
    """The cluster did not come up, did not come into order, or a node ended by itself."""


class NotSent(TestingError):
    """Values that were not acknowledged in time."""


class NotRead(TestingError):
    """A queue was not read to its end in time."""


class FaultMissing(TestingError):
    """This backend, or this system, cannot do what the step asks for."""


class ChecksFailed(AssertionError):
    """What the checkers found, or why they could not tell."""

    def __init__(self, text: str, finding_ids: tuple[str, ...]) -> None:
        super().__init__(text)
        self.finding_ids = finding_ids
        """Ids of the checks that were violated, the gravest first; empty for `unknown`."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.finding_ids)


class BudgetSpent(BaseException):
    """The real time of one test is over. Not for a body to catch."""
