"""`python -m infersiege`: the same as the command `infersiege`."""

from infersiege.cli import main

if __name__ == "__main__":
    main()
