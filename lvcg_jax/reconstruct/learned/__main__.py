"""Trains a network that derives leads, for the table of `lvcg reconstruct --learned`.

    lvcg fit_leads --network=vae_cnn --data=SHARDS --flops=2e13 --out=vae_cnn.safetensors

    field     LVCG on a field of the whole beat, on top of the closed form
    vae_cnn   a convolutional variational autoencoder
    e_lstm    a bidirectional LSTM that reads the record sample by sample
    nef_net   views of one field, asked for by the angles of a lead

All learn from the training split, with 1 to 11 visible leads drawn for each step. The budget is in
floating-point operations, the same number for all networks: a tenth goes to each of two learning
rates, the rest to the one with the smaller error on training patients who are held out. If it is
stopped, the same command goes on where it was. See reconstruct/learned/fitting.py.
"""

from data_prep.base.command import Parser, natural_int, positive_float, positive_int, run_command
from lvcg_jax.reconstruct.learned.fitting import RATES, fit_network
from lvcg_jax.reconstruct.learned.networks import NETWORKS, parse_sizes


def parse_rates(text: str) -> tuple[float, ...]:
    return tuple(positive_float(word) for word in text.split(","))


def main(argv: list[str] | None = None) -> int:
    parser = Parser("fit_leads", __doc__)
    add = parser.add_argument
    add("--network", required=True, choices=list(NETWORKS), help="which network")
    add("--data", required=True, metavar="SHARDS", help="shards with a training split")
    add(
        "--flops",
        type=positive_float,
        default=2e13,
        help="floating-point operations of the whole training (default 2e13)",
    )
    add(
        "--rates",
        type=parse_rates,
        default=RATES,
        metavar="RATE,RATE",
        help="learning rates to try (default 0.001,0.003); one is taken as it is",
    )
    add(
        "--size",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="another size or choice of the network than its usual one, such as width=256 or, for"
        " the field, skip=False, context=False, basis=dipole; may be repeated",
    )
    add("--records", type=positive_int, help="training records at most (default all)")
    add("--seed", type=natural_int, default=0, help="of weights and draws (default 0)")
    add("--out", required=True, metavar="FILE", help="the file to write")
    args = parser.parse_args(argv)
    sizes = parse_sizes(args.network, args.size)
    facts = fit_network(
        args.network, args.data, args.flops, args.out, args.seed, args.records, sizes, args.rates
    )
    tried = [f"{rate} gave {error:.4f}" for rate, error in facts["rates"].items()]
    tried.append(f"at the end {facts['held_error']:.4f}")
    print(
        f"{args.network}: {facts['parameters']:,} parameters, {facts['flops_per_row']:.3g} FLOPs a"
        f" row, {facts['steps']} steps of {facts['rows']} rows\n"
        f"learning rate {facts['rate']:g} was taken (error on {facts['held_records']} held-out"
        f" records: {', '.join(tried)})\n"
        f"written: {args.out}"
    )
    return 0


if __name__ == "__main__":
    run_command(main)
