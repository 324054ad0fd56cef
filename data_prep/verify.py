"""Proves that a dataset directory is what its dataset.json says, and that nothing leaks between its
splits.

    lvcg verify --data=data/ptbxl

Every file is read in full. Checked are files, sizes and checksums; the numbers of examples,
records, patients, beats and labels; that uids are unique and values are sound; the ledger against
the shards; that no patient and no signal is in two splits; and that Grain and tfds read the same
values. Prints one page and ends with exit code 0, or with exit code 2 and a line for each thing
that failed.
"""

import sys

from data_prep.base.command import Parser, run_command
from data_prep.base.words import printable
from data_prep.dataset.checks import verify


def main(argv: list[str] | None = None) -> int:
    parser = Parser(
        "verify",
        "Check a dataset directory: counts, checksums, no patient and no signal in two splits,"
        "\nlabels, ledger, and that Grain and tfds can read it."
        "\nExit code 0 if all is well, 2 otherwise.",
    )
    parser.add_argument("--data", required=True, help="dataset directory of `lvcg build`")
    args = parser.parse_args(argv)
    page, failed = verify(args.data, progress=True)
    print("\n".join(map(printable, page.split("\n"))))
    for line in failed:
        print(f"error: {printable(line)}", file=sys.stderr)
    print(f"{args.data}: {'REFUSED' if failed else 'verified'}")
    return 2 if failed else 0


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
