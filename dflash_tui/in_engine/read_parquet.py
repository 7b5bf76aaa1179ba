"""Print the first rows of a Parquet file as lines of JSON, with pyarrow: `python read_parquet.py FILE ROWS`.

The file may be anything, so that time and memory have a bound, and an error is its last words on stderr.
"""

import itertools
import json
import resource
import sys
from importlib import import_module

MEMORY, SECONDS, TEXT = 4 << 30, 60, 256 << 20


def main() -> None:
    """Read the file."""
    path, count = sys.argv[1], int(sys.argv[2])
    parquet = import_module("pyarrow.parquet")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    printed = 0
    batches = parquet.ParquetFile(path).iter_batches(batch_size=64, use_threads=False)
    for row in itertools.islice((row for batch in batches for row in batch.to_pylist()), count):
        line = json.dumps(row, default=str)
        printed += len(line)
        if printed > TEXT:
            return
        print(line)


if __name__ == "__main__":
    try:
        main()
    except ModuleNotFoundError:
        sys.exit("pyarrow is missing")
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
