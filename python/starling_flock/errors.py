"""The errors of this package."""


class FlockError(Exception):
    """What happened, to what, and what to do next."""


class Refused(FlockError):
    """The node refused this trainer, in the node's own words."""

    def __init__(self, reason, why, passing=False):
        super().__init__(f"the node refused this trainer ({reason}): {why}")
        self.reason, self.why, self.passing = reason, why, passing


class NodeGone(FlockError):
    """The node closed the connection."""
