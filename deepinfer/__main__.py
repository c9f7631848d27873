"""`python -m deepinfer` is the command line.

In: words of a shell. Out: see cli.py. Does not know: anything.
"""

from deepinfer.cli import main

main()
