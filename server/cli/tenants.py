"""`holdfast tenants`: create, list, show, update and delete tenants' settings."""

import argparse
from dataclasses import fields

from server.administration import tenant_changes as administration
from server.administration.options_and_form_fields import time_of
from server.caller import TenantSettings
from server.cli import command as cli
from server.cli.options import add_request_options, request_of
from server.configuration.settings import Config
from server.errors import ConfigError
from server.protocol.administration.objects import Tenant
from server.protocol.administration.requests import UpdateTenant
from server.store.administration import stored_keys, tenants


def add_commands(commands: cli.Subcommands) -> None:
    group = cli.add_group(commands, "tenants", "tenants' settings")
    create = cli.add_command(group, "create", "make settings of a tenant", _create)
    create.add_argument("tenant")
    add_request_options(create, UpdateTenant)
    listing = cli.add_command(group, "list", "list the tenants that have settings or keys", _list)
    listing.add_argument("--json", action="store_true", help="a line of JSON for each tenant")
    show = cli.add_command(group, "show", "show a tenant's settings", _show)
    show.add_argument("tenant")
    show.add_argument("--json", action="store_true")
    update = cli.add_command(group, "update", "change a tenant's settings; omitted ones stay", _update)
    update.add_argument("tenant")
    add_request_options(update, UpdateTenant)
    delete = cli.add_command(group, "delete", "remove a tenant's settings; its responses stay", _delete)
    delete.add_argument("tenant")


def _create(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        request = request_of(UpdateTenant, options)
        administration.create_tenant(connection, cli.this_user(), options.tenant, request)
    cli.print_status(f"Tenant {options.tenant} has settings now.")


def _list(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        names = tenants.names_page(connection)
        listed = administration.tenant_objects(connection, names)
    columns = ("tenant", "made", "contact", "settings", "limits")
    cli.print_rows(((tenant, _columns(tenant)) for tenant in listed), columns, as_json=options.json)


def _show(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        tenant = administration.shown_tenant(connection, options.tenant)
        if tenant.created_at is None:
            raise ConfigError(
                f"Tenant {options.tenant!r} has no settings of its own; `holdfast tenants list` shows which."
            )
        valid = stored_keys.valid_keys_of(connection, options.tenant)
    cli.print_rows([(tenant, _columns(tenant))], (), as_json=options.json)
    if not options.json:
        cli.print_result(f"{valid} valid keys")


def _columns(tenant: Tenant) -> list[str]:
    if tenant.created_at is None:
        return [tenant.id, "the server's settings"]
    own = [
        f"{field.name.replace('_', ' ')} {value}"
        for field in fields(TenantSettings)
        if field.name != "limits" and (value := getattr(tenant, field.name)) is not None
    ]
    made = f"made {time_of(tenant.created_at):%Y-%m-%d}"
    return [tenant.id, made, tenant.contact, ", ".join(own), cli.described_limits(tenant)]


def _update(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        request = request_of(UpdateTenant, options)
        tenant = administration.update_tenant(connection, cli.this_user(), options.tenant, request)
    cli.print_status("\t".join(_columns(tenant)).rstrip())


def _delete(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        administration.delete_tenant(connection, cli.this_user(), options.tenant)
    cli.print_status(f"Tenant {options.tenant} has the server's settings now.")
