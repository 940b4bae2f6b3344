"""The `dunlin` command: one module per subcommand, each with `add(subparsers)` and `run(arguments)`.

Parsing is cheap: what a subcommand needs is imported when it runs, so `dunlin --help` loads no gRPC and no torch.
"""
