"""Errors for users' tests."""


class TestingError(Exception):
    """A wrong use of the plugin; the message says what to do."""

    __test__ = False


class UnknownFault(TestingError, AttributeError):
    """A fault that `chaos` does not have."""


class NotReady(TestingError):
    """Use of something before the body of the test began."""


class ClusterFailed(TestingError):
    """The cluster did not come up, did not come into order, or a node ended on its own."""


class NotSent(TestingError):
    """Values that were not acknowledged in time."""


class NotRead(TestingError):
    """A queue that was not read to its end in time."""


class FaultMissing(TestingError):
    """A step that this backend, or this system, cannot do."""


class ChecksFailed(AssertionError):
    """Findings of the checks, or why they are inconclusive."""

    def __init__(self, text: str, finding_ids: tuple[str, ...]) -> None:
        super().__init__(text)
        self.finding_ids = finding_ids
        """Ids of the checks that were violated, the gravest first; empty for `unknown`."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.finding_ids)


class BudgetSpent(BaseException):
    """The real time of one test is over. Not for a body to catch."""
