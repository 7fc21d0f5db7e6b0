-- Tables of replicas, responses, conversations and event logs, and their indexes
create table replicas (
    id uuid not null,
    state text not null,
    host text not null,
    pid integer not null,
    version text not null,
    models text[] not null,
    started_at timestamptz not null default clock_timestamp(),
    heartbeat_at timestamptz not null default clock_timestamp(),
    reading uuid[] not null default '{}',
    role text not null default 'all',
    revision text not null,
    constraint pk_replicas primary key (id),
    constraint ck_replicas_role check (role in ('all', 'api', 'worker')),
    constraint ck_replicas_state check (state in ('alive', 'stopped', 'dead'))
);

create table installation (
    name text not null,
    system_identifier text not null,
    database_oid bigint not null,
    recorded_at timestamptz not null default clock_timestamp(),
    held_before timestamptz,
    constraint pk_installation primary key (name)
);

create table responses (
    tenant text not null,
    id uuid not null,
    previous_id uuid,
    conversation_id uuid,
    status text not null,
    background boolean not null,
    stream boolean not null,
    model text not null,
    priority integer not null default 0,
    replica_id uuid,
    attempt integer not null default 1,
    seed bigint not null,
    prompt_hash bytea,
    cancel_requested_at timestamptz,
    created_at timestamptz not null default clock_timestamp(),
    queued_at timestamptz,
    started_at timestamptz,
    first_token_at timestamptz,
    finished_at timestamptz,
    expires_at timestamptz,
    deleted_at timestamptz,
    input_tokens integer,
    cached_tokens integer,
    output_tokens integer,
    reasoning_tokens integer,
    error_code text,
    error_message text,
    incomplete_reason text,
    request json not null,
    metadata jsonb not null,
    key_id text,
    deaths integer not null default 0,
    asked json,
    choice smallint,
    size integer not null,
    turns json,
    request_id text,
    queue_seconds double precision,
    prefill_seconds double precision,
    trace_parent text,
    end_user text,
    kind text not null,
    root_id uuid,
    turn integer not null,
    weights text,
    cancel_reason text,
    user_agent text,
    constraint pk_responses primary key (tenant, id),
    constraint ck_responses_status check (
        status in ('queued', 'in_progress', 'completed', 'failed', 'incomplete', 'cancelled')
    )
) partition by range (id);
create index ix_responses_choice on responses (tenant, created_at desc) where choice = 0;
create index ix_responses_conversation_id on responses (tenant, conversation_id)
    where conversation_id is not null and status in ('queued', 'in_progress');
create index ix_responses_created_at on responses (tenant, created_at desc);
create index ix_responses_end_user on responses (tenant, end_user, created_at desc)
    where end_user is not null;
create index ix_responses_expires_at on responses (expires_at) where expires_at is not null;
create index ix_responses_id on responses (id);
create index ix_responses_metadata on responses using gin (metadata jsonb_path_ops);
create index ix_responses_model on responses (tenant, model, created_at desc);
create index ix_responses_previous_id on responses (tenant, previous_id) where previous_id is not null;
create index ix_responses_replica_id on responses (replica_id) where status = 'in_progress';
create index ix_responses_status on responses (tenant, status, created_at desc) where status <> 'completed';
create index ix_responses_time on responses (created_at);
create index ix_responses_waiting on responses (tenant, priority, queued_at)
    where replica_id is null and status in ('queued', 'in_progress');

create table items (
    tenant text not null,
    response_id uuid not null,
    side smallint not null,
    idx integer not null,
    id text not null,
    type text not null,
    role text,
    status text,
    name text,
    call_id text,
    payload json not null,
    created_at timestamptz not null default clock_timestamp(),
    size integer not null,
    for_model text,
    seconds double precision,
    constraint pk_items primary key (tenant, response_id, side, idx)
) partition by range (response_id);
create index ix_items_calls on items (created_at) where type like '%\_call';
create index ix_items_id on items (tenant, id);
create index ix_items_approvals on items (response_id) where type = 'mcp_approval_request' and side = 1;
create index ix_items_approval_answers on items (tenant, (payload ->> 'approval_request_id'))
    where type = 'mcp_approval_response' and side = 0;

create table conversations (
    tenant text not null,
    id uuid not null,
    metadata jsonb not null,
    created_at timestamptz not null default clock_timestamp(),
    next_position bigint not null default '0',
    size integer not null,
    touched_at timestamptz not null default clock_timestamp(),
    constraint pk_conversations primary key (tenant, id)
);

create table conversation_items (
    tenant text not null,
    conversation_id uuid not null,
    position bigint not null,
    id text not null,
    type text not null,
    role text,
    status text,
    name text,
    call_id text,
    payload json not null,
    response_id uuid,
    created_at timestamptz not null default clock_timestamp(),
    size integer not null,
    for_model text,
    constraint pk_conversation_items primary key (tenant, conversation_id, position),
    constraint uq_conversation_items_tenant_id unique (tenant, id)
);

create table images (
    tenant text not null,
    digest bytea not null,
    media_type text not null,
    size integer not null,
    data bytea not null,
    created_at timestamptz not null default clock_timestamp(),
    constraint pk_images primary key (tenant, digest)
);
alter table images alter column data set storage external;

create table item_images (
    tenant text not null,
    owner uuid not null,
    item_id text not null,
    digest bytea not null,
    removed_at timestamptz,
    constraint pk_item_images primary key (tenant, owner, item_id, digest),
    constraint fk_item_images_tenant_digest foreign key (tenant, digest) references images (tenant, digest)
);
create index ix_item_images_digest on item_images (tenant, digest);
create index ix_item_images_removed_at on item_images (removed_at) where removed_at is not null;

create table prompts (
    tenant text not null,
    id text not null,
    version integer not null,
    content json not null,
    created_at timestamptz not null default clock_timestamp(),
    constraint pk_prompts primary key (tenant, id, version)
);

create table response_events_hot (
    tenant text not null,
    response_id uuid not null,
    first_seq integer not null,
    n integer not null,
    kind smallint not null,
    output_index integer not null,
    content_index integer not null,
    attempt integer not null,
    body text not null,
    token_ids bytea,
    at double precision not null default extract(epoch from clock_timestamp()),
    constraint pk_response_events_hot primary key (tenant, response_id, first_seq)
) with (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);

create table response_streams (
    tenant text not null,
    response_id uuid not null,
    last_seq integer not null,
    codec smallint not null,
    body text not null,
    finished_at timestamptz not null default clock_timestamp(),
    size integer not null,
    constraint pk_response_streams primary key (tenant, response_id)
) partition by range (response_id);

create table idempotency_keys (
    tenant text not null,
    key text not null,
    digest bytea not null,
    response_id uuid not null,
    created_at timestamptz not null default clock_timestamp(),
    replica_id uuid,
    constraint pk_idempotency_keys primary key (tenant, key)
);
create index ix_idempotency_keys_created_at on idempotency_keys (created_at);
