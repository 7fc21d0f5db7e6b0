"""`holdfast tenants`: create, list, show, update and delete tenants' settings."""

import argparse
from dataclasses import fields

from server.administration import tenants as administration
from server.administration.api_objects import budget_object
from server.administration.tenants import TenantProperties
from server.caller import TenantSettings
from server.cli.command import (
    Subcommands,
    add_command,
    add_group,
    current_database,
    print_columns,
    print_result,
    print_status,
)
from server.cli.option_types import (
    add_limit_options,
    add_option,
    changed,
    count,
    described_limits,
    json_line,
    or_none,
    refusals_as_sentences,
    this_user,
)
from server.configuration.settings import Config
from server.errors import ConfigError
from server.store.administration import budgets, stored_keys, tenants
from server.store.administration.budgets import Standing
from server.store.administration.tenants import StoredTenant
from server.store.database import Connection


def add_commands(commands: Subcommands) -> None:
    group = add_group(commands, "tenants", "tenants' settings")
    create = add_command(group, "create", "make settings of a tenant", _create)
    create.add_argument("tenant")
    _add_properties(create)
    listing = add_command(group, "list", "list the tenants that have settings or keys", _list)
    listing.add_argument("--json", action="store_true", help="a line of JSON for each tenant with settings")
    show = add_command(group, "show", "show a tenant's settings", _show)
    show.add_argument("tenant")
    show.add_argument("--json", action="store_true")
    update = add_command(group, "update", "change a tenant's settings; what is not given stays", _update)
    update.add_argument("tenant")
    _add_properties(update)
    delete = add_command(group, "delete", "remove a tenant's settings; its responses stay", _delete)
    delete.add_argument("tenant")


def _add_properties(command: argparse.ArgumentParser) -> None:
    add_option(command, "--contact", help="whom to ask")
    for flag, what in (
        ("--max-unfinished", "unfinished responses at a time on one replica"),
        ("--max-queued", "background responses that wait"),
        ("--max-stored-bytes", "bytes stored"),
        ("--retention-days", "days until its new responses expire; 0: never"),
        ("--conversation-days", "days until conversations that nothing changes expire; 0: never"),
    ):
        help_text = f"{what}; `none`: the server's setting"
        add_option(command, flag, metavar="N", type=or_none(count), help=help_text)
    add_limit_options(command)


def _create(config: Config, options: argparse.Namespace) -> int:
    with current_database(config) as (database, _), refusals_as_sentences():
        with database.begin() as connection:
            properties = changed(TenantProperties(), options)
            administration.create_tenant(connection, this_user(), options.tenant, properties)
        print_status(f"Tenant {options.tenant} has settings now.")
    return 0


def _list(config: Config, options: argparse.Namespace) -> int:
    with current_database(config) as (database, _), database.begin() as connection:
        stored = {one.tenant: one for one in tenants.list_all(connection)}
        known = tenants.names(connection)
        held = budgets.of_tenants(connection, stored.values())
    if not options.json:
        print_columns("tenant", "made", "contact", "settings", "limits")
    for name in known:
        tenant = stored.get(name)
        if tenant is not None:
            print_result(_line(tenant, held.get(name), as_json=options.json))
        elif not options.json:
            print_result(f"{name}\tthe server's settings")
    return 0


def _line(tenant: StoredTenant, standing: Standing | None, *, as_json: bool) -> str:
    if as_json:
        budget = None if standing is None else budget_object(tenant.settings.limits, standing)
        return json_line(tenant, budget=budget)
    return _described(tenant, standing)


def _show(config: Config, options: argparse.Namespace) -> int:
    with current_database(config) as (database, _), database.begin() as connection:
        tenant = _found(connection, options.tenant)
        valid = stored_keys.valid_keys_of(connection, options.tenant)
        standing = budgets.of_tenants(connection, [tenant]).get(tenant.tenant)
    print_result(_line(tenant, standing, as_json=options.json))
    if not options.json:
        print_result(f"{valid} valid keys")
    return 0


def _found(connection: Connection, name: str) -> StoredTenant:
    tenant = tenants.get(connection, name)
    if tenant is None:
        raise ConfigError(f"Tenant {name!r} has no settings of its own; `holdfast tenants list` shows which.")
    return tenant


def _described(tenant: StoredTenant, standing: Standing | None = None) -> str:
    settings = tenant.settings
    own = [
        f"{one.name.replace('_', ' ')} {value}"
        for one in fields(TenantSettings)
        if one.name != "limits" and (value := getattr(settings, one.name)) is not None
    ]
    limits = described_limits(settings.limits, standing)
    columns = (tenant.tenant, f"made {tenant.created_at:%Y-%m-%d}", tenant.contact, ", ".join(own), limits)
    return "\t".join(columns).rstrip()


def _update(config: Config, options: argparse.Namespace) -> int:
    with current_database(config) as (database, _), refusals_as_sentences():
        with database.begin() as connection:
            tenant = administration.update_tenant(
                connection, this_user(), options.tenant, lambda properties: changed(properties, options)
            )
        print_status(_described(tenant))
    return 0


def _delete(config: Config, options: argparse.Namespace) -> int:
    with current_database(config) as (database, _), refusals_as_sentences():
        with database.begin() as connection:
            administration.delete_tenant(connection, this_user(), options.tenant)
        print_status(f"Tenant {options.tenant} has the server's settings now.")
    return 0
