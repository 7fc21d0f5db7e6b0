-- `admin.usage`, `usage_daily`, `users_daily`: what was used, by response, day and user
create view admin.usage with (security_invoker) as
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
comment on view admin.usage is 'every ended response, stored or not, one row each, also after it was deleted';
comment on column admin.usage.id is 'compare it with admin.uuid_of(''resp_…'')';
comment on column admin.usage.response is 'the id as the API shows it';
comment on column admin.usage.tenant is 'whose it was';
comment on column admin.usage.key_id is 'the API key of its create';
comment on column admin.usage.end_user is 'user, else safety_identifier, of its request';
comment on column admin.usage.kind is 'response, chat or completion: the API that made it';
comment on column admin.usage.model is 'the model that was asked';
comment on column admin.usage.background is 'it ran whether or not a client waited';
comment on column admin.usage.stored is 'it had a row in responses';
comment on column admin.usage.status is 'completed, incomplete, failed or cancelled';
comment on column admin.usage.error_code is 'the code of its error, if it failed';
comment on column admin.usage.started_at is 'when it was accepted';
comment on column admin.usage.first_token_at is 'when the engine gave its first token';
comment on column admin.usage.finished_at is 'when it ended';
comment on column admin.usage.first_token_seconds is 'from started_at to first_token_at';
comment on column admin.usage.total_seconds is 'from started_at to finished_at';
comment on column admin.usage.queue_seconds is 'from the engine''s acceptance to its first step, the sum of its turns';
comment on column admin.usage.prefill_seconds is 'from the first step to the first token, the sum of its turns';
comment on column admin.usage.input_tokens is 'tokens of its prompts, cached ones among them';
comment on column admin.usage.cached_tokens is 'tokens of its prompts that the engine had computed before';
comment on column admin.usage.output_tokens is 'tokens that were generated, reasoning among them';
comment on column admin.usage.reasoning_tokens is 'generated tokens of reasoning';
comment on column admin.usage.tokens_per_second is 'output_tokens by the time from the first token to the end; tool calls count as time';
comment on column admin.usage.cost is 'at the price when it ended; null: its model had none';
comment on column admin.usage.attempt is 'how many replicas have run it';
comment on column admin.usage.request_id is 'x-request-id of its create';
comment on column admin.usage.key_name is 'the name of that key';
comment on column admin.usage.cancel_reason is 'why it was cancelled';
comment on column admin.usage.metadata is 'what the client has attached: pairs whose values have at most 64 characters';

create view admin.usage_daily with (security_invoker) as
select
    u.day,
    u.tenant,
    nullif(u.key_id, '') as key_id,
    k.name as key_name,
    u.model,
    u.kind,
    u.status,
    nullif(u.error_code, '') as error_code,
    u.responses,
    u.input_tokens,
    u.cached_tokens,
    u.output_tokens,
    u.reasoning_tokens,
    u.cost,
    u.unpriced
from (
    select day, tenant, key_id, model, kind, status, error_code, responses, input_tokens, cached_tokens,
        output_tokens, reasoning_tokens, cost, unpriced
    from usage_days
    union all
    select day, tenant, key_id, model, kind, status, error_code, responses, input_tokens, cached_tokens,
        output_tokens, reasoning_tokens, cost, unpriced
    from usage_changes
) as u
left join api_keys k on k.id = u.key_id;
comment on view admin.usage_daily is 'sums of every ended response by day, exact at any time; several rows may have the same values, so sum them';
comment on column admin.usage_daily.day is 'on which they ended, in UTC';
comment on column admin.usage_daily.tenant is 'whose they are';
comment on column admin.usage_daily.key_id is 'the API key; null: none';
comment on column admin.usage_daily.key_name is 'the name of that key';
comment on column admin.usage_daily.model is 'the model that was asked';
comment on column admin.usage_daily.kind is 'response, chat or completion';
comment on column admin.usage_daily.status is 'completed, incomplete, failed or cancelled';
comment on column admin.usage_daily.error_code is 'the code of their error; null: none';
comment on column admin.usage_daily.responses is 'how many';
comment on column admin.usage_daily.input_tokens is 'cached ones among them';
comment on column admin.usage_daily.cached_tokens is 'tokens of prompts that the engine had computed before';
comment on column admin.usage_daily.output_tokens is 'reasoning among them';
comment on column admin.usage_daily.reasoning_tokens is 'generated tokens of reasoning';
comment on column admin.usage_daily.cost is 'of those that have one';
comment on column admin.usage_daily.unpriced is 'responses whose model had no price';

create view admin.users_daily with (security_invoker) as
select day, tenant, end_user, responses, input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost, unpriced
from user_days
union all
select day, tenant, end_user, responses, input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost, unpriced
from usage_changes
where end_user <> '';
comment on view admin.users_daily is 'sums of every ended response that names an end user, by day and user; sum the rows';
comment on column admin.users_daily.day is 'on which they ended, in UTC';
comment on column admin.users_daily.tenant is 'whose they are';
comment on column admin.users_daily.end_user is 'user, else safety_identifier, of the requests';
comment on column admin.users_daily.responses is 'how many';
comment on column admin.users_daily.input_tokens is 'cached ones among them';
comment on column admin.users_daily.cached_tokens is 'tokens of prompts that the engine had computed before';
comment on column admin.users_daily.output_tokens is 'reasoning among them';
comment on column admin.users_daily.reasoning_tokens is 'generated tokens of reasoning';
comment on column admin.users_daily.cost is 'of those that have one';
comment on column admin.users_daily.unpriced is 'responses whose model had no price';
