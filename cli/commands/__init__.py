"""The subcommands, one module each, by what they are for."""
