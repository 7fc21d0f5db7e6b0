"""`holdfast webhooks`: endpoints of webhooks, their secrets and samples; lists and repeats deliveries."""

import argparse
from datetime import timedelta

from server.administration import webhook_changes
from server.administration.objects_from_rows import delivery_object, endpoint_object
from server.caller import DEFAULT_TENANT
from server.cli import command as cli
from server.cli.options import add_request_options, duration, refuse_unknown_tenant, request_of, whole_number
from server.configuration import settings
from server.configuration.settings import Config
from server.process.open_database import load_seal_keys
from server.protocol.ids import response_id, webhook_endpoint_id, webhook_id
from server.protocol.list_pages import PageRequest
from server.protocol.webhook_objects import EVENT_TYPES, CreateEndpoint, UpdateEndpoint
from server.store.webhooks import endpoints, outbox
from server.store.webhooks.endpoints import StoredEndpoint
from server.store.webhooks.outbox import StoredDelivery
from server.webhooks.delivery_attempt import WebhookClient, allowed_receivers

_MAX_LISTED = 1000


def add_commands(commands: cli.Subcommands) -> None:
    group = cli.add_group(commands, "webhooks", "webhook endpoints")
    create = cli.add_command(group, "create", "make an endpoint and show its secret, once", _create)
    create.add_argument("url")
    create.add_argument("--tenant", default=DEFAULT_TENANT, help="whose it is (default: %(default)s)")
    add_request_options(create, UpdateEndpoint, "url", "enabled")
    listing = cli.add_command(group, "list", "list endpoints", _list)
    listing.add_argument("--tenant")
    listing.add_argument("--json", action="store_true", help="a line of JSON for each endpoint")
    update = _of_endpoint(group, "update", "change an endpoint; omitted options stay", _update)
    add_request_options(update, UpdateEndpoint)
    rotate = _of_endpoint(group, "rotate", "replace an endpoint's secret by a new one, shown once", _rotate)
    day, says = timedelta(hours=24), "how long events are signed with the old secret, too (default: 24h)"
    rotate.add_argument("--overlap", type=duration, default=day, help=says)
    _of_endpoint(group, "delete", "delete an endpoint; its pending deliveries are given up", _delete)
    sample = _of_endpoint(group, "test", "send a sample to an endpoint and show its answer", _test)
    sample.add_argument("--event", choices=EVENT_TYPES, default=EVENT_TYPES[0])
    deliveries = _of_endpoint(group, "deliveries", "list the newest deliveries of an endpoint", _deliveries)
    deliveries.add_argument("--state", choices=outbox.STATES)
    deliveries.add_argument(
        "--limit", type=whole_number(0, 10**9), default=100, help=f"(default: 100, at most {_MAX_LISTED})"
    )
    deliveries.add_argument("--json", action="store_true", help="a line of JSON for each delivery")
    again = _of_endpoint(group, "redeliver", "deliver given-up events again, or one delivery", _redeliver)
    again.add_argument("delivery_id", nargs="?", help="default: the newest of those that were given up")
    for command in (create, update, sample):
        for name in ("webhook_hosts", "webhook_seconds"):
            setting = next(known for known in settings.settings() if known.name == name)
            command.add_argument(setting.flag, dest=name, metavar="X", help="as the server's setting")


def _of_endpoint(group: cli.Subcommands, name: str, says: str, run: cli.Run) -> argparse.ArgumentParser:
    command = cli.add_command(group, name, says, run)
    command.add_argument("endpoint_id", help="such as we_0190…; `holdfast webhooks list` shows it")
    return command


def _create(config: Config, options: argparse.Namespace) -> None:
    host = options.url.partition("://")[2].partition("/")[0][:100] or "-"
    new = {"url": options.url, "name": host, "event_types": EVENT_TYPES}
    with cli.current_database(config) as (database, _), cli.refusals_as_sentences():
        seal = load_seal_keys(config, database)
        with database.begin() as connection:
            request = request_of(CreateEndpoint, options, **new)
            made = webhook_changes.create_endpoint(
                connection, cli.this_user(), seal, allowed_receivers(config), options.tenant, request
            )
        _show_secret("is made", made)


def _show_secret(what: str, made: webhook_changes.NewSecret) -> None:
    endpoint = webhook_endpoint_id(made.stored.id)
    whose = f"Endpoint {endpoint} of tenant {made.stored.tenant}"
    cli.print_status(f"{whose} {what}; its secret is shown this once:")
    cli.print_result(made.secret)


def _list(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        listed = endpoints.list_page(connection, options.tenant)
        if not listed:
            refuse_unknown_tenant(connection, options.tenant)
    columns = ("endpoint", "tenant", "made", "name", "url", "which", "events", "state")
    rows = ((endpoint_object(endpoint), _columns(endpoint)) for endpoint in listed)
    cli.print_rows(rows, columns, as_json=options.json)


def _columns(endpoint: StoredEndpoint) -> list[str]:
    chosen = endpoint.properties
    state = "enabled" if endpoint.disabled_at is None else f"disabled: {endpoint.disabled_reason}"
    which = "all responses" if chosen.all_responses else "background responses"
    events = ",".join(sorted(event_type.removeprefix("response.") for event_type in chosen.event_types))
    made = f"made {endpoint.created_at:%Y-%m-%d}"
    whose = (webhook_endpoint_id(endpoint.id), endpoint.tenant)
    return [*whose, made, chosen.name, chosen.url, which, events, state]


def _update(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        stored = webhook_changes.update_endpoint(
            connection,
            cli.this_user(),
            allowed_receivers(config),
            webhook_changes.find(connection, options.endpoint_id, None, lock=True),
            request_of(UpdateEndpoint, options),
        )
    cli.print_status("\t".join(_columns(stored)))


def _rotate(config: Config, options: argparse.Namespace) -> None:
    with cli.current_database(config) as (database, _), cli.refusals_as_sentences():
        seal = load_seal_keys(config, database)
        with database.begin() as connection:
            stored = webhook_changes.find(connection, options.endpoint_id, None, lock=True)
            made = webhook_changes.rotate_secret(connection, cli.this_user(), seal, stored, options.overlap)
        _show_secret("has a new secret", made)


def _delete(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        stored = webhook_changes.find(connection, options.endpoint_id, None, lock=True)
        webhook_changes.delete_endpoint(connection, cli.this_user(), stored)
    cli.print_status(f"Endpoint {options.endpoint_id} is deleted.")


def _test(config: Config, options: argparse.Namespace) -> int:
    with cli.current_database(config) as (database, _), cli.refusals_as_sentences():
        seal, allowed = load_seal_keys(config, database), allowed_receivers(config)
        client = WebhookClient(seal, allowed, config.webhook_seconds)
        with database.begin() as connection:
            stored = webhook_changes.find(connection, options.endpoint_id, None)
            sealed = endpoints.sealed_secrets(connection, stored.id)
        status = client.send_sample(stored, sealed, options.event)
        cli.print_result(f"HTTP status {status}")
    return 0 if 200 <= status < 300 else 1


def _deliveries(config: Config, options: argparse.Namespace) -> None:
    most = min(options.limit, _MAX_LISTED)
    with cli.transaction(config) as connection:
        stored = webhook_changes.find(connection, options.endpoint_id, None)
        newest = PageRequest(None, most, newest_first=True)
        listed = outbox.list_page(connection, stored.tenant, stored.id, options.state, newest)[:most]
    columns = ("webhook", "at", "type", "response", "state", "attempts", "error")
    rows = ((delivery_object(delivery), _delivery_columns(delivery)) for delivery in listed)
    cli.print_rows(rows, columns, as_json=options.json)


def _delivery_columns(delivery: StoredDelivery) -> list[str]:
    return [
        webhook_id(delivery.id),
        f"{delivery.created_at:%Y-%m-%d %H:%M:%S}",
        delivery.type,
        response_id(delivery.response_id),
        delivery.state,
        f"{delivery.attempts} attempts",
        delivery.last_error or "",
    ]


def _redeliver(config: Config, options: argparse.Namespace) -> None:
    with cli.transaction(config) as connection:
        stored = webhook_changes.find(connection, options.endpoint_id, None, lock=True)
        deliveries = webhook_changes.redeliver(connection, cli.this_user(), stored, options.delivery_id)
    cli.print_status(f"{deliveries} are delivered again.")
