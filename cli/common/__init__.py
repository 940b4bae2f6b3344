"""What several subcommands use: options, output, the connection to a cluster."""
