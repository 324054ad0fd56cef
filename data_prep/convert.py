"""One ECG file of any format that is read here, as a WFDB record.

    lvcg convert ecg.dcm ecg
    lvcg convert holter.edf holter --lead_names=CH1=I,CH2=II

Writes OUT.hea and OUT.dat (16 bits) and says what was read, how finely it is stored, and what of
the file is not kept. Names and ids of patients are never written. Files that exist are not
overwritten.
"""

import sys
from pathlib import Path

from data_prep.base.command import RECORD_FLAGS, Parser, run_command
from data_prep.base.errors import InputError
from data_prep.formats.any_file import FORMATS, file_kind, read_any
from data_prep.formats.wfdb_files import write_wfdb


def main(argv: list[str] | None = None) -> int:
    parser = Parser("convert", __doc__)
    parser.add_argument("source", metavar="IN", help="file to read")
    parser.add_argument("out", metavar="OUT", help="WFDB record to write: OUT.hea and OUT.dat")
    for name, options in RECORD_FLAGS.items():
        parser.add_argument(f"--{name}", **options)
    args = parser.parse_args(argv)
    out = Path(args.out.removesuffix(".hea"))
    for path in (Path(f"{out}.hea"), Path(f"{out}.dat")):
        if path.exists():
            raise InputError(f"{path} exists already: choose another name, or delete it first")
    record = read_any(args.source, args.rate, args.unit, args.lead_names)
    form = FORMATS[file_kind(args.source, record.record_id)]
    step, error = write_wfdb(out, record.signal, record.rate, record.leads)
    seconds = len(record.signal) / record.rate
    print(f"read: {form.name}, {seconds:.1f} s at {record.rate:g} Hz, {', '.join(record.leads)}")
    print("".join(f"note: {note}\n" for note in record.notes), end="")
    print(f"resolution: steps of {step:.3g} uV, at most {error:.2g} uV from what was read")
    print(f"not kept: {form.lost}")
    print(f"{out}.hea and {out}.dat")
    return 0


if __name__ == "__main__":
    run_command(main, sys.argv[1:])
