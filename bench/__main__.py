"""`python -m bench [name …]` runs the measurements, all of them by default."""

import sys

from bench import serving

BENCHES = {"serving": serving.run}


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(BENCHES))
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are: {', '.join(BENCHES)}")
        return 2
    for name in names or BENCHES:
        print(f"== {name}: {BENCHES[name].__doc__}")
        BENCHES[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
