"""A slice of all generated mutants, in five short runs of clusters and all sessions.

    python -m tests.mutation.slice NUMBER SEED OUT

Prints the score, as JSON. A program, since pytest rewrites each `assert` of our modules as it loads
them: their code is then not what the source says, and no mutant of it can be planted.
"""

import json
import sys
from pathlib import Path
from typing import Final

from rocketbed.chaos.plan.library import load_scenario
from tests.mutation.generated.search import Search, search
from tests.mutation.generated.tally import SURVIVORS, as_row, result_text, write_survivors
from tests.mutation.generated.visits import Trial, suite

CLUSTERS: Final = ("power-roll", "isr-squeeze", "rolling-restart", "soak-swarm", "soak-failover")
RUNS: Final = 2


def main(number: str, seed: str, out: str) -> None:
    """Run the fixed slice; the seed is that of the draw."""
    trials = [Trial(plan=load_scenario(name).plan(1, quick=True)) for name in CLUSTERS]
    trials += [trial for trial in suite(1) if trial.kind == "session"]
    request = Search(number=int(number), seed=int(seed), out=Path(out), runs=RUNS)

    def say(line: str) -> None:
        print(line, file=sys.stderr)

    progress = search(
        request, lambda verdict: say(result_text(verdict)), say, warn=say, trials=trials
    )
    write_survivors(progress, request.out / SURVIVORS)
    print(json.dumps(as_row(progress)))


if __name__ == "__main__":
    main(*sys.argv[1:])
