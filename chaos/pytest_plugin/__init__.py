"""Implementation of the pytest plugin (`rocketbed.testing`): users' own tests as trials.

A marked test is a scenario whose steps its body takes. The body runs in the place of a trial's
conductor: in simulation as one more machine with a loop and a clock of its own, elsewhere in trio.
"""
