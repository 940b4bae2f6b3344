"""`dunlin config`: what holds and where it came from, and what there is to set."""

import argparse

from cli.common.errors import OK, USAGE, CliError
from cli.common.options import Subparsers, add_json, add_settings

ROLES = ("cluster", "dispatcher", "instance", "kvstore", "manager", "monitor")


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser("config", help="show and explain settings")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    show = commands.add_parser(
        "show",
        help="what holds, and where each value came from",
        description="Print what holds with the given files, the environment and --set, as TOML, and where each value "
        "came from. Nothing is started; what is wrong is said with exit code 2.",
    )
    show.add_argument("--role", action="append", choices=ROLES, help="this role alone (default: all); may be repeated")
    show.add_argument("--preset", metavar="NAME", help="the choice of policies (cluster.preset)")
    add_settings(show)
    add_json(show)
    show.set_defaults(run=run_show)
    listed = commands.add_parser("list", help="what there is to set: meaning, unit, range, default and why")
    listed.add_argument("about", nargs="?", default="", metavar="NAME", help="settings that begin so (default: all)")
    listed.add_argument("--markdown", action="store_true", help="the whole page docs/settings.md")
    listed.set_defaults(run=run_list)


def run_show(arguments: argparse.Namespace) -> int:
    """Print it; exit code 2 if something is wrong with it."""
    from cli.common.output import as_json
    from dunlin.config.errors import ConfigError
    from dunlin.config.resolve import PRESET, resolve
    from dunlin.config.show import as_toml, as_values
    from dunlin.config.sources import Given, from_all
    from services.settings import TABLES

    flags = [Given(PRESET, arguments.preset, "--preset")] if arguments.preset else []
    try:
        settings = resolve(TABLES, from_all(arguments.config, arguments.set, flags))
        for role, table in TABLES.items():
            settings.configure(role, table)
    except ConfigError as error:
        raise CliError(str(error), USAGE) from None
    roles = arguments.role or ROLES
    print(as_json(as_values(settings, roles)) if arguments.json else as_toml(settings, roles))
    return OK


def run_list(arguments: argparse.Namespace) -> int:
    """Print it; exit code 2 if no setting begins so."""
    text = page() if arguments.markdown else "\n".join(_lines(arguments.about)).strip()
    if not text:
        raise CliError(f"no setting begins with {arguments.about!r}: names begin with {', '.join(ROLES)}", USAGE)
    print(text)
    return OK


def page() -> str:
    """`docs/settings.md`."""
    from dunlin.config.fields import settings_of
    from dunlin.config.show import head
    from services.settings import TABLES

    example = next(one for one in settings_of(TABLES["instance"], "instance.") if one.name.endswith("budget_tokens"))
    return "\n".join((head(example), *_lines("")))


def _lines(about: str) -> list[str]:
    from dunlin.config.fields import settings_of
    from dunlin.config.show import describe
    from services.settings import TABLES, is_simulated

    names = [one.name for role, table in TABLES.items() for one in settings_of(table, f"{role}.")]
    return list(describe(TABLES, [name for name in names if not is_simulated(name)], about))
