-- Tables of operators: keys, tenants, limits, prices, usage, the audit trail, webhooks; and their indexes
create table storage_changes (
    tenant text not null,
    id uuid not null default gen_random_uuid(),
    bytes bigint not null,
    day date,
    constraint pk_storage_changes primary key (tenant, id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

create table storage_days (
    tenant text not null,
    day date not null,
    added bigint not null,
    removed bigint not null,
    constraint pk_storage_days primary key (tenant, day)
) with (fillfactor = 80);
create index ix_storage_days_day on storage_days (day);

create table refused_requests (
    tenant text not null,
    hour timestamptz not null,
    route text not null,
    status integer not null,
    error_code text not null,
    requests bigint not null,
    constraint pk_refused_requests primary key (tenant, hour, route, status, error_code)
) with (fillfactor = 50);
create index ix_refused_requests_hour on refused_requests (hour);

create table refused_keys (
    tenant text not null,
    hour timestamptz not null,
    key_id text not null,
    status integer not null,
    error_code text not null,
    requests bigint not null,
    constraint pk_refused_keys primary key (tenant, hour, key_id, status, error_code)
) with (fillfactor = 50);
create index ix_refused_keys_hour on refused_keys (hour);

create table rate_buckets (
    tenant text not null,
    key_id text not null,
    kind text not null,
    full_at timestamp with time zone default clock_timestamp() not null,
    constraint pk_rate_buckets primary key (tenant, key_id, kind)
)
with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);

create table spend (
    tenant text not null,
    key_id text not null,
    day date not null,
    id uuid not null default gen_random_uuid(),
    tokens bigint not null,
    cost numeric not null,
    constraint pk_spend primary key (tenant, key_id, day, id)
);
create index ix_spend_day on spend (day);

create table budget_reservations (
    tenant text not null,
    response_id uuid not null,
    key_id text not null,
    replica_id uuid not null,
    stored boolean not null,
    tokens bigint not null,
    cost numeric not null,
    created_at timestamptz not null default clock_timestamp(),
    constraint pk_budget_reservations primary key (tenant, response_id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

create table api_keys (
    tenant text not null,
    id text not null,
    name text not null,
    digest bytea not null,
    created_at timestamptz not null default clock_timestamp(),
    last_used_at timestamptz,
    expires_at timestamptz,
    revoked_at timestamptz,
    priority_floor integer not null default 0,
    first_used_at timestamptz,
    scopes text[] not null default '{read,write}',
    models text[],
    tools text[],
    replaced_by text,
    first_key text,
    ends_streams boolean not null default false,
    requests_per_minute integer,
    tokens_per_minute bigint,
    budget_tokens bigint,
    budget_cost numeric,
    budget_period text not null default 'month',
    constraint pk_api_keys primary key (tenant, id),
    constraint uq_api_keys_id unique (id),
    constraint ck_api_keys_budget_period check (budget_period in ('day', 'month', 'total'))
);

create table tenants (
    tenant text not null,
    contact text not null default '',
    created_at timestamptz not null default clock_timestamp(),
    max_unfinished integer,
    max_queued integer,
    max_stored_bytes bigint,
    retention_days integer,
    requests_per_minute integer,
    tokens_per_minute bigint,
    budget_tokens bigint,
    budget_cost numeric,
    budget_period text not null default 'month',
    conversation_days integer,
    constraint pk_tenants primary key (tenant),
    constraint ck_tenants_budget_period check (budget_period in ('day', 'month', 'total'))
);

create table prices (
    model text not null,
    valid_from timestamptz not null default clock_timestamp(),
    input numeric not null,
    cached_input numeric not null,
    output numeric not null,
    constraint pk_prices primary key (model, valid_from)
);

create table usage_ledger (
    tenant text not null,
    response_id uuid not null,
    key_id text,
    model text not null,
    status text not null,
    stored boolean not null,
    input_tokens integer not null,
    cached_tokens integer not null,
    output_tokens integer not null,
    reasoning_tokens integer not null,
    started_at timestamptz not null default clock_timestamp(),
    finished_at timestamptz not null default clock_timestamp(),
    request_id text,
    queue_seconds double precision,
    prefill_seconds double precision,
    first_token_at timestamptz,
    error_code text,
    cost numeric,
    end_user text,
    kind text not null,
    background boolean not null,
    attempt integer not null,
    cancel_reason text,
    metadata jsonb,
    constraint pk_usage_ledger primary key (tenant, response_id)
) partition by range (response_id);
create index ix_usage_ledger_finished_at on usage_ledger (tenant, finished_at);
create index ix_usage_ledger_time on usage_ledger (finished_at);

create table usage_changes (
    tenant text not null,
    id uuid not null default gen_random_uuid(),
    day date not null,
    key_id text not null,
    model text not null,
    kind text not null,
    status text not null,
    error_code text not null,
    end_user text not null,
    responses bigint not null,
    input_tokens bigint not null,
    cached_tokens bigint not null,
    output_tokens bigint not null,
    reasoning_tokens bigint not null,
    cost numeric not null,
    unpriced bigint not null,
    constraint pk_usage_changes primary key (tenant, id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

create table usage_days (
    tenant text not null,
    day date not null,
    key_id text not null,
    model text not null,
    kind text not null,
    status text not null,
    error_code text not null,
    responses bigint not null,
    input_tokens bigint not null,
    cached_tokens bigint not null,
    output_tokens bigint not null,
    reasoning_tokens bigint not null,
    cost numeric not null,
    unpriced bigint not null,
    constraint pk_usage_days primary key (tenant, day, key_id, model, kind, status, error_code)
) with (fillfactor = 80);
create index ix_usage_days_day on usage_days (day);

create table user_days (
    tenant text not null,
    end_user text not null,
    day date not null,
    responses bigint not null,
    input_tokens bigint not null,
    cached_tokens bigint not null,
    output_tokens bigint not null,
    reasoning_tokens bigint not null,
    cost numeric not null,
    unpriced bigint not null,
    constraint pk_user_days primary key (tenant, end_user, day)
) with (fillfactor = 80);
create index ix_user_days_day on user_days (day);

create table audit_trail (
    id uuid not null default gen_random_uuid(),
    at timestamptz not null default clock_timestamp(),
    actor text not null,
    action text not null,
    tenant text,
    target text,
    request_id text,
    details jsonb not null default '{}',
    constraint pk_audit_trail primary key (id)
);
create index ix_audit_trail_at on audit_trail (at desc);

create table seal_keys (
    name text not null,
    key bytea not null,
    created_at timestamptz not null default clock_timestamp(),
    constraint pk_seal_keys primary key (name)
);

create table key_requirement (
    name text not null,
    since timestamptz not null default clock_timestamp(),
    constraint pk_key_requirement primary key (name)
);

create table reader_tenants (
    tenant text not null,
    role text not null,
    constraint pk_reader_tenants primary key (tenant, role)
);

create table schema_compatibility (
    revision text not null,
    oldest_code text not null,
    release text not null,
    applied_at timestamptz not null default clock_timestamp(),
    constraint pk_schema_compatibility primary key (revision)
);

create table webhook_endpoints (
    tenant text not null,
    id uuid not null,
    name text not null,
    url text not null,
    event_types text[] not null,
    all_responses boolean not null default false,
    secret text not null,
    old_secret text,
    old_secret_until timestamptz,
    created_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz not null default clock_timestamp(),
    disabled_at timestamptz,
    disabled_reason text,
    constraint pk_webhook_endpoints primary key (tenant, id),
    constraint uq_webhook_endpoints_id unique (id)
);

create table webhook_deliveries (
    tenant text not null,
    id uuid not null default gen_random_uuid(),
    endpoint_id uuid not null,
    event_id uuid not null,
    response_id uuid not null,
    type text not null,
    created_at timestamptz not null default clock_timestamp(),
    attempts integer not null default 0,
    next_attempt_at timestamptz,
    give_up_at timestamptz not null,
    last_attempt_at timestamptz,
    last_status integer,
    last_error text,
    delivered_at timestamptz,
    given_up_at timestamptz,
    constraint pk_webhook_deliveries primary key (tenant, id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
create index ix_webhook_deliveries_created_at on webhook_deliveries (tenant, created_at desc, id);
create index ix_webhook_deliveries_due on webhook_deliveries (endpoint_id, next_attempt_at)
    where next_attempt_at is not null;
create index ix_webhook_deliveries_ended on webhook_deliveries (coalesce(delivered_at, given_up_at))
    where next_attempt_at is null;
create index ix_webhook_deliveries_response_id on webhook_deliveries (tenant, response_id);

create table saved_views (
    id uuid not null default gen_random_uuid(),
    page text not null,
    name text not null,
    content text not null,
    created_by text not null,
    created_at timestamptz not null default clock_timestamp(),
    constraint pk_saved_views primary key (id),
    constraint uq_saved_views_page_name unique (page, name),
    constraint ck_saved_views_page check (page in ('history', 'sql'))
);
