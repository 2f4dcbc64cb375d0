"""Any program, with its life tied to the program that started it: see `chaos.process.tied`.

    python -P tied_program.py <pid of the starter> java ...

The kernel keeps the wish over `exec`, so it is expressed here and the program is put in our place.
"""

import os
import sys

from chaos.process.tied import EXIT_ORPHAN, tie_to

if __name__ == "__main__":
    if not tie_to(int(sys.argv[1])):
        sys.exit(EXIT_ORPHAN)
    os.execvp(sys.argv[2], sys.argv[2:])
