"""All models with the seeds given as arguments; exits with 1 if one of them disagrees.

python -m tests.model 17 18
"""

import sys
import traceback

from tests.model.catalogue import sessions


def main(seeds: list[int]) -> int:
    """Run every session of each seed, and print what disagrees."""
    code = 0
    for seed in seeds:
        for name, session in sessions(seed).items():
            try:
                session()
            except Exception:
                print(f"{name}:\n{traceback.format_exc()}")
                code = 1
    return code


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]]))
