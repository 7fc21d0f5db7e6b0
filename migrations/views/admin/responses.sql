-- The schema `admin`; `admin.responses`, `chain`, `unfinished`: stored responses, the history of one, those not finished
create schema admin;
comment on schema admin is 'views for people: see docs/sql.md';

create function admin.uuid_of(name text) returns uuid language sql immutable strict parallel safe
return regexp_replace(name, '^(resp|conv|chatcmpl|cmpl)[_-]', '')::uuid;
comment on function admin.uuid_of(text) is 'the uuid of resp_…, conv_… or chatcmpl-…, for a comparison with an id';

create function admin.name_of(prefix text, id uuid) returns text language sql immutable strict parallel safe
return prefix || replace(id::text, '-', '');
comment on function admin.name_of(text, uuid) is 'the id as the API shows it: a prefix such as resp_, and the uuid without dashes';

-- Postgres refuses to take anything out of JSON that has an escaped NUL anywhere in it, so it is taken from a copy
-- without NULs.
create function admin.field(value json, path text[]) returns text language sql immutable strict parallel safe
return case when strpos(value::text, '\u0000') = 0 then value #>> path
    else regexp_replace(value::text, '(?<!\\)((\\\\)*)\\u0000', '\1', 'g')::json #>> path end;
comment on function admin.field(json, text[]) is 'a value in JSON as text, without NUL characters';

create view admin.responses with (security_invoker) as
select
    r.id,
    admin.name_of('resp_', r.id) as response,
    r.tenant,
    r.kind,
    r.model,
    r.status,
    r.background,
    r.stream,
    r.end_user,
    r.key_id,
    k.name as key_name,
    r.created_at,
    r.started_at,
    r.first_token_at,
    r.finished_at,
    extract(epoch from r.first_token_at - r.created_at)::float8 as first_token_seconds,
    extract(epoch from r.finished_at - r.created_at)::float8 as total_seconds,
    r.queue_seconds,
    r.prefill_seconds,
    r.input_tokens,
    r.cached_tokens,
    r.output_tokens,
    r.reasoning_tokens,
    (r.output_tokens / nullif(extract(epoch from r.finished_at - r.first_token_at), 0))::float8 as tokens_per_second,
    r.error_code,
    r.error_message,
    r.incomplete_reason,
    coalesce(r.root_id, r.id) as chain_id,
    r.turn,
    r.previous_id,
    admin.name_of('resp_', r.previous_id) as previous_response,
    r.conversation_id,
    admin.name_of('conv_', r.conversation_id) as conversation,
    r.request_id,
    r.metadata,
    r.priority,
    r.attempt,
    r.deaths,
    r.replica_id,
    r.expires_at,
    r.deleted_at,
    r.cancel_reason,
    r.user_agent,
    admin.field(r.request, '{instructions}') as instructions,
    admin.field(r.request, '{prompt,id}') as prompt_id,
    admin.field(r.request, '{prompt,version}') as prompt_version,
    admin.field(r.request, '{temperature}')::float8 as temperature,
    admin.field(r.request, '{top_p}')::float8 as top_p,
    admin.field(r.request, '{max_output_tokens}')::bigint as max_output_tokens,
    admin.field(r.request, '{reasoning,effort}') as reasoning_effort,
    r.seed,
    r.prompt_hash,
    r.size as request_bytes,
    (select sum(i.size)::bigint from items i where i.tenant = r.tenant and i.response_id = r.id) as items_bytes,
    (select s.size from response_streams s where s.tenant = r.tenant and s.response_id = r.id) as stream_bytes
from responses r
left join api_keys k on k.id = r.key_id;
comment on view admin.responses is 'every stored response, one row each';
comment on column admin.responses.id is 'compare it with admin.uuid_of(''resp_…''), which an index serves';
comment on column admin.responses.response is 'the id as the API shows it';
comment on column admin.responses.tenant is 'whose it is';
comment on column admin.responses.kind is 'response, chat or completion: the API that made it';
comment on column admin.responses.model is 'the model that was asked';
comment on column admin.responses.status is 'queued, in_progress, completed, incomplete, failed or cancelled';
comment on column admin.responses.background is 'it runs whether or not a client waits';
comment on column admin.responses.stream is 'its create asked for a stream';
comment on column admin.responses.end_user is 'user, else safety_identifier, of its request';
comment on column admin.responses.key_id is 'the API key of its create';
comment on column admin.responses.key_name is 'the name of that key';
comment on column admin.responses.created_at is 'when it was accepted';
comment on column admin.responses.started_at is 'when a replica began it';
comment on column admin.responses.first_token_at is 'when the engine gave its first token';
comment on column admin.responses.finished_at is 'when it ended';
comment on column admin.responses.first_token_seconds is 'from created_at to first_token_at';
comment on column admin.responses.total_seconds is 'from created_at to finished_at';
comment on column admin.responses.queue_seconds is 'from the engine''s acceptance to its first step, the sum of its turns';
comment on column admin.responses.prefill_seconds is 'from the first step to the first token, the sum of its turns';
comment on column admin.responses.input_tokens is 'tokens of its prompts, cached ones among them';
comment on column admin.responses.cached_tokens is 'tokens of its prompts that the engine had computed before';
comment on column admin.responses.output_tokens is 'tokens that were generated, reasoning among them';
comment on column admin.responses.reasoning_tokens is 'generated tokens of reasoning';
comment on column admin.responses.tokens_per_second is 'output_tokens by the time from the first token to the end; tool calls count as time';
comment on column admin.responses.error_code is 'the code of its error, if it failed';
comment on column admin.responses.error_message is 'the message of its error';
comment on column admin.responses.incomplete_reason is 'why it is incomplete';
comment on column admin.responses.chain_id is 'the first response of its chain of previous responses, itself if there is none';
comment on column admin.responses.turn is 'its place in that chain, the first at 1';
comment on column admin.responses.previous_id is 'the response that it goes on from';
comment on column admin.responses.previous_response is 'previous_id as the API shows it';
comment on column admin.responses.conversation_id is 'the conversation that it belongs to';
comment on column admin.responses.conversation is 'conversation_id as the API shows it';
comment on column admin.responses.request_id is 'x-request-id of its create';
comment on column admin.responses.metadata is 'what the client has attached';
comment on column admin.responses.priority is 'a lower number is more urgent';
comment on column admin.responses.attempt is 'how many replicas have run it';
comment on column admin.responses.deaths is 'deaths of replicas that ran it and had stored nothing new';
comment on column admin.responses.replica_id is 'the replica that runs it, or ran it last';
comment on column admin.responses.expires_at is 'when it may be purged; null: never';
comment on column admin.responses.deleted_at is 'when it was deleted, if later responses still need its items';
comment on column admin.responses.cancel_reason is 'why it was cancelled, or is to be: client_request, client_disconnect, deleted, key_ended, erased, operator or window_ended';
comment on column admin.responses.user_agent is 'the client''s program, as its create named it; SDKs name themselves and their version';
comment on column admin.responses.instructions is 'of its request';
comment on column admin.responses.prompt_id is 'the stored prompt that its request used';
comment on column admin.responses.prompt_version is 'the version of that prompt';
comment on column admin.responses.temperature is 'of its sampling';
comment on column admin.responses.top_p is 'of its sampling';
comment on column admin.responses.max_output_tokens is 'the limit that its request set';
comment on column admin.responses.reasoning_effort is 'of its request';
comment on column admin.responses.seed is 'of its sampling, given or drawn';
comment on column admin.responses.prompt_hash is 'of its prompt''s tokens: the same prompt has the same';
comment on column admin.responses.request_bytes is 'bytes of its row, most of them the request';
comment on column admin.responses.items_bytes is 'bytes of its items, input and output';
comment on column admin.responses.stream_bytes is 'bytes of its stream of events, once it has ended';

create function admin.chain(response text) returns setof admin.responses language sql stable parallel safe
begin atomic
    with recursive chain (tenant, id, previous_id) as (
        select tenant, id, previous_id from responses where id = admin.uuid_of(response)
        union all
        select r.tenant, r.id, r.previous_id from chain c join responses r on r.tenant = c.tenant and r.id = c.previous_id
    )
    select v.* from chain c join admin.responses v on v.tenant = c.tenant and v.id = c.id order by v.turn;
end;
comment on function admin.chain(text) is 'a response and those that it goes on from, the first one first';

create view admin.unfinished with (security_invoker) as
select
    r.id,
    admin.name_of('resp_', r.id) as response,
    r.tenant,
    r.model,
    r.status,
    r.background,
    r.end_user,
    clock_timestamp() - r.created_at as age,
    clock_timestamp() - r.cancel_requested_at as cancel_requested,
    r.attempt,
    r.deaths,
    p.id as replica_id,
    p.host,
    p.pid,
    p.state as replica_state,
    clock_timestamp() - p.heartbeat_at as heartbeat_age
from (
    select id, tenant, model, status, background, end_user, created_at, cancel_requested_at, attempt, deaths, replica_id
    from responses where replica_id is null and status in ('queued', 'in_progress')
    union all
    select id, tenant, model, status, background, end_user, created_at, cancel_requested_at, attempt, deaths, replica_id
    from responses where replica_id is not null and status = 'in_progress'
) as r
left join replicas p on p.id = r.replica_id;
comment on view admin.unfinished is 'responses that are queued or run, and the replicas that run them';
comment on column admin.unfinished.id is 'the response';
comment on column admin.unfinished.response is 'the id as the API shows it';
comment on column admin.unfinished.tenant is 'whose it is';
comment on column admin.unfinished.model is 'the model that was asked';
comment on column admin.unfinished.status is 'queued or in_progress';
comment on column admin.unfinished.background is 'it runs whether or not a client waits';
comment on column admin.unfinished.end_user is 'user, else safety_identifier, of its request';
comment on column admin.unfinished.age is 'since its create';
comment on column admin.unfinished.cancel_requested is 'since its cancel; null: it is not to be cancelled';
comment on column admin.unfinished.attempt is 'how many replicas have run it';
comment on column admin.unfinished.deaths is 'deaths of replicas that ran it and had stored nothing new';
comment on column admin.unfinished.replica_id is 'the replica that runs it; null: it waits for one';
comment on column admin.unfinished.host is 'the replica''s machine';
comment on column admin.unfinished.pid is 'the replica''s process';
comment on column admin.unfinished.replica_state is 'alive, stopped or dead';
comment on column admin.unfinished.heartbeat_age is 'since the replica''s last heartbeat';
