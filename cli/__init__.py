"""The `dunlin` command: one module per subcommand in `commands`, each with `add(subparsers)` and `run(arguments)`.

common       options, output, the connection to a cluster
launch       `dunlin up`: a cluster on this machine
profiling    measuring an engine, fitting cost models

Parsing is cheap: what a subcommand needs is imported when it runs, so `dunlin --help` loads no gRPC and no torch.
"""
