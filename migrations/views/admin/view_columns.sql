-- More columns of `admin.responses`, `items` and `usage`; `admin.storage_daily` and `refused_hourly`
-- Postgres refuses to take anything out of JSON that has an escaped NUL anywhere in it, so it is taken from a copy
-- without NULs.
create function admin.field(value json, path text[]) returns text language sql immutable strict parallel safe
return case when strpos(value::text, '\u0000') = 0 then value #>> path
    else regexp_replace(value::text, '(?<!\\)((\\\\)*)\\u0000', '\1', 'g')::json #>> path end;
comment on function admin.field(json, text[]) is 'a value in JSON as text, without NUL characters';

create function admin.text_of(payload json) returns text language sql immutable strict parallel safe
return (
    with whole (item) as (
        select case when strpos(payload::text, '\u0000') = 0 then payload
            else regexp_replace(payload::text, '(?<!\\)((\\\\)*)\\u0000', '\1', 'g')::json end
    )
    select coalesce(
        case when json_typeof(item -> 'content') = 'string' then item ->> 'content' end,
        case when json_typeof(item -> 'content') = 'array' then (
            select string_agg(coalesce(part ->> 'text', part ->> 'refusal'), e'\n')
            from json_array_elements(item -> 'content') part) end,
        case when json_typeof(item -> 'summary') = 'array' then (
            select string_agg(part ->> 'text', e'\n') from json_array_elements(item -> 'summary') part) end,
        item ->> 'arguments', item ->> 'input', item ->> 'output')
    from whole
);
comment on function admin.text_of(json) is 'the text of an item: of a message or of reasoning, the arguments of a call, the output of one';

create or replace view admin.responses with (security_invoker) as
select
    r.id,
    admin.name_of('resp_', r.id) as response,
    r.tenant,
    coalesce(r.kind, case when r.choice is null then 'response' else 'chat' end) as kind,
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
    coalesce(r.turn, 1) as turn,
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
comment on column admin.responses.cancel_reason is 'why it was cancelled, or is to be: client_request, client_disconnect, deleted, key_ended, erased or operator';
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

create or replace function admin.chain(response text) returns setof admin.responses language sql stable parallel safe
begin atomic
    with recursive chain (tenant, id, previous_id) as (
        select tenant, id, previous_id from responses where id = admin.uuid_of(response)
        union all
        select r.tenant, r.id, r.previous_id from chain c join responses r on r.tenant = c.tenant and r.id = c.previous_id
    )
    select v.* from chain c join admin.responses v on v.tenant = c.tenant and v.id = c.id order by v.turn;
end;
comment on function admin.chain(text) is 'a response and those that it goes on from, the first one first';

create or replace view admin.items with (security_invoker) as
select
    r.id as response_id,
    admin.name_of('resp_', r.id) as response,
    r.tenant,
    case i.side when 0 then 'input' else 'output' end as side,
    i.idx as place,
    i.id as item,
    i.type,
    i.role,
    i.name,
    i.status,
    i.payload,
    i.size,
    i.created_at,
    admin.text_of(i.payload) as text
from responses r
join items i on i.tenant = r.tenant and i.response_id = r.id;
comment on column admin.items.text is 'what it says: the text of a message or of reasoning, the arguments of a call, the output of one';

create or replace function admin.search(words text) returns setof admin.items language sql stable parallel safe
begin atomic
    select
        i.response_id, admin.name_of('resp_', i.response_id), i.tenant,
        case i.side when 0 then 'input' else 'output' end, i.idx, i.id, i.type, i.role, i.name, i.status,
        i.payload, i.size, i.created_at, admin.text_of(i.payload)
    from items i
    where admin.words(i.payload) @@ websearch_to_tsquery('simple'::regconfig, words);
end;
comment on function admin.search(text) is 'items with these words, by an index if `holdfast db text-search on` has made it';

create or replace view admin.usage with (security_invoker) as
select
    l.response_id as id,
    admin.name_of('resp_', l.response_id) as response,
    l.tenant,
    l.key_id,
    l.end_user,
    l.kind,
    l.model,
    l.background,
    l.stored,
    l.status,
    l.error_code,
    l.started_at,
    l.first_token_at,
    l.finished_at,
    extract(epoch from l.first_token_at - l.started_at)::float8 as first_token_seconds,
    extract(epoch from l.finished_at - l.started_at)::float8 as total_seconds,
    l.queue_seconds,
    l.prefill_seconds,
    l.input_tokens,
    l.cached_tokens,
    l.output_tokens,
    l.reasoning_tokens,
    (l.output_tokens / nullif(extract(epoch from l.finished_at - l.first_token_at), 0))::float8 as tokens_per_second,
    l.cost,
    l.attempt,
    l.request_id,
    k.name as key_name,
    l.cancel_reason,
    l.metadata
from usage_ledger l
left join api_keys k on k.id = l.key_id;
comment on column admin.usage.key_name is 'the name of that key';
comment on column admin.usage.cancel_reason is 'why it was cancelled';
comment on column admin.usage.metadata is 'what the client has attached: pairs whose values have at most 64 characters';

create view admin.storage_daily with (security_invoker) as
select tenant, day, sum(added)::bigint as added, sum(removed)::bigint as removed,
    sum(added - removed)::bigint as growth
from (
    select tenant, day, added, removed from storage_days
    union all
    select tenant, day, greatest(bytes, 0), greatest(-bytes, 0) from storage_changes where day is not null
) as d
group by tenant, day;
comment on view admin.storage_daily is 'bytes that each tenant stored and removed by day, as its quota counts them, since revision 0022';
comment on column admin.storage_daily.tenant is 'whose they are';
comment on column admin.storage_daily.day is 'in UTC';
comment on column admin.storage_daily.added is 'bytes that were stored';
comment on column admin.storage_daily.removed is 'bytes that were removed';
comment on column admin.storage_daily.growth is 'added less removed';

create view admin.refused_hourly with (security_invoker) as
select r.hour, r.tenant, r.key_id, k.name as key_name, r.status as http_status, nullif(r.error_code, '') as error_code,
    r.requests
from refused_keys r
left join api_keys k on k.id = r.key_id;
comment on view admin.refused_hourly is 'requests with an API key that were answered with an error, by hour and key';
comment on column admin.refused_hourly.hour is 'its begin';
comment on column admin.refused_hourly.tenant is 'whose they are';
comment on column admin.refused_hourly.key_id is 'the API key';
comment on column admin.refused_hourly.key_name is 'the name of that key';
comment on column admin.refused_hourly.http_status is 'of HTTP, 400 and above';
comment on column admin.refused_hourly.error_code is 'of the error object; null: none';
comment on column admin.refused_hourly.requests is 'how many';
