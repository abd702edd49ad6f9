"""`python -m atmc`: the `atmc` command, also for torchrun (`torchrun --nproc-per-node 2 -m atmc sample RECIPE`).

Nothing here imports torch: `python -m atmc --help` has to answer at once.
"""

from atmc.cli.main import main

if __name__ == "__main__":  # decoding processes import this file, too
    main()
