-- Generated responses: 90 days, 20 tenants, 3 models, 6,000 users. `:count` is how many.
-- One of seven calls a tool, three of four go on from an earlier one, one of fourteen does not complete.
create function pg_temp.uuid_at(t timestamptz) returns uuid language sql volatile as $$
    select (lpad(to_hex((extract(epoch from t) * 1000)::bigint), 12, '0') || '7' ||
        substr(md5(random()::text), 1, 3) || '8' || substr(md5(random()::text), 1, 15))::uuid $$;

create temp table drawn as
select i, t as created_at, pg_temp.uuid_at(t) as id,
    case when random() < 0.4 then 'acme' else 'tenant-' || floor(20 * random() * random()) end as tenant,
    (array['qwen3-8b', 'qwen3-8b', 'gpt-oss-20b', 'llama-3.2-3b'])[1 + floor(random() * 4)] as model,
    'user-' || floor(300 * random() * random()) as end_user, random() < 0.75 as goes_on, random() < 0.2 as background,
    case when random() < 0.93 then 'completed' when random() < 0.4 then 'failed' when random() < 0.6
        then 'incomplete' else 'cancelled' end as status,
    case when random() < 0.15 then (array['get_weather', 'search', 'run_sql', 'send_mail'])[1 + floor(random() * 4)]
        end as tool,
    50 + floor(4000 * random() * random())::int as input_tokens, random() as cached,
    11 + floor(600 * random() * random())::int as output_tokens, 0.05 + random() * random() * 2 as first_token,
    20 + random() * 60 as speed, random() * random() * 2 as queue, random() < 0.9 as stored
from (select i, clock_timestamp() - interval '90 days' + i * interval '90 days' / :count as t
      from generate_series(1, :count) as i) as g;

create temp table chained as
select d.*, row_number() over c as turn, first_value(id) over c as root_id,
    case when row_number() over c > 1 then lag(id) over c end as previous_id,
    created_at + (queue + first_token) * interval '1 s' as first_token_at,
    created_at + (queue + first_token + output_tokens / speed) * interval '1 s' as finished_at
from (select *, count(*) filter (where not goes_on) over (partition by tenant, end_user order by created_at)
      as session from drawn) as d
window c as (partition by tenant, end_user, session order by created_at);

insert into api_keys (tenant, id, name, digest)
select distinct tenant, 'key-' || tenant, 'the key of ' || tenant, sha256(tenant::bytea) from drawn;

insert into responses (tenant, id, previous_id, status, background, stream, model, seed, created_at, queued_at,
    started_at, first_token_at, finished_at, expires_at, input_tokens, cached_tokens, output_tokens,
    reasoning_tokens, error_code, error_message, key_id, request, metadata, size, request_id, queue_seconds,
    prefill_seconds, end_user, kind, root_id, turn, prompt_hash, user_agent, cancel_reason)
select tenant, id, previous_id, status, background, not background, model, i, created_at,
    case when background then created_at end, created_at, first_token_at, finished_at,
    created_at + interval '120 days', input_tokens, (cached * input_tokens)::int, output_tokens, 0,
    case when status = 'failed' then 'server_error' end, case when status = 'failed' then 'It failed.' end,
    'key-' || tenant,
    json_build_object('background', background, 'model', model, 'temperature', 0.7, 'tools', '[]'::json,
        'user', end_user, 'top_p', 1, 'truncation', 'disabled', 'store', true, 'parallel_tool_calls', true,
        'instructions', repeat('Answer in few words. ', 10),
        'prompt', case when i % 4 = 0 then json_build_object('id', 'greeting', 'version', (1 + i / 4 % 3)::text) end),
    jsonb_build_object('team', (array['red', 'blue', 'green'])[1 + i % 3], 'variant', (array['a', 'b'])[1 + i % 2]), 1700, 'req_' || i, queue, first_token,
    end_user, 'response', case when turn > 1 then root_id end, turn,
    sha256(case when i % 10 = 0 then (i % 500)::text else i::text end::bytea),
    (array['OpenAI/Python 3.57.0', 'OpenAI/JS 6.9.0', 'curl/8.5.0'])[1 + i % 3],
    case when status = 'cancelled' then 'client_request' end
from chained order by created_at;

insert into usage_ledger (tenant, response_id, key_id, model, status, stored, input_tokens, cached_tokens,
    output_tokens, reasoning_tokens, started_at, finished_at, first_token_at, queue_seconds, prefill_seconds,
    error_code, cost, request_id, end_user, kind, background, attempt, cancel_reason, metadata)
select tenant, id, 'key-' || tenant, model, status, stored, input_tokens, (cached * input_tokens)::int, output_tokens,
    0, created_at, finished_at, first_token_at, queue, first_token,
    case when status = 'failed' then 'server_error' end,
    case when model <> 'llama-3.2-3b' then (input_tokens * 0.2 + output_tokens * 0.6) / 1000000 end,
    'req_' || i, end_user, (array['response', 'response', 'chat', 'completion'])[1 + i % 4], background, 1,
    case when status = 'cancelled' then 'client_request' end,
    jsonb_build_object('team', (array['red', 'blue', 'green'])[1 + i % 3], 'variant', (array['a', 'b'])[1 + i % 2])
from chained order by created_at;

insert into items (tenant, response_id, side, idx, id, type, role, status, payload, created_at, size)
select tenant, id, 0, 0, 'msg_' || replace(id::text, '-', '') || 'i0', 'message', 'user', 'completed',
    json_build_object('type', 'message', 'role', 'user', 'content', json_build_array(json_build_object(
        'type', 'input_text', 'text', repeat('lorem ipsum dolor ', 1 + input_tokens / 200)))), created_at, 300
from chained order by created_at;

insert into items (tenant, response_id, side, idx, id, type, role, status, name, call_id, payload, created_at, size,
    seconds)
select tenant, id, 1, 0, 'x_' || replace(id::text, '-', '') || 'o0',
    case when tool is null then 'message' when i % 2 = 0 then 'mcp_call' else 'function_call' end,
    case when tool is null then 'assistant' end, case when tool is not null and i % 20 = 0 then 'failed' else
        'completed' end, tool, case when tool is not null then 'call_' || i end,
    json_build_object('type', 'message', 'server_label', 'files', 'content', repeat('sit amet ', 10)), finished_at,
    300, case when tool is not null and i % 2 = 0 then first_token end
from chained order by created_at;

insert into response_streams (tenant, response_id, last_seq, codec, body, finished_at, size)
select tenant, id, 201, 2, made.body, finished_at, length(made.body) from chained cross join (
    select json_agg(json_build_array(n * 10, 10, 1, 0, 0, 1790000000.5, ('["' || repeat('word", "', 9) || '"]')::json, 1))
        ::text as body from generate_series(0, 9) as n) as made
order by created_at;

insert into conversations (tenant, id, metadata, created_at, size)
select tenant, pg_temp.uuid_at(created_at), '{}', created_at, 2 from drawn where i % 50 = 0;

insert into conversation_items (tenant, conversation_id, position, id, type, status, payload, created_at, size)
select c.tenant, c.id, n, 'msg_' || replace(c.id::text, '-', '') || n, 'message', 'completed', '{}', c.created_at, 2
from conversations c cross join lateral generate_series(1, 1 + (hashtext(c.id::text) & 15)) as n;

insert into refused_requests (tenant, hour, route, status, error_code, requests)
select tenant, h, '/v1/responses', 429, 'rate_limit_exceeded', 5 from api_keys cross join generate_series(
    date_trunc('hour', clock_timestamp() - interval '90 days'), clock_timestamp(), interval '1 hour') as h;

insert into storage_changes (tenant, bytes) select tenant, sum(size) from responses group by tenant;

insert into refused_keys (tenant, hour, key_id, status, error_code, requests)
select tenant, h, id, 429, 'rate_limit_exceeded', 5 from api_keys cross join generate_series(
    date_trunc('hour', clock_timestamp() - interval '90 days'), clock_timestamp(), interval '1 hour') as h;

insert into storage_days (tenant, day, added, removed)
select tenant, created_at::date, sum(size), 0 from responses group by 1, 2;
