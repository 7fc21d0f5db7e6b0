-- `admin.latency_hourly`, `failures_daily`, `refused_hourly`: how fast responses were, and what failed or was refused
create view admin.latency_hourly with (security_invoker) as
select
    h.hour, l.tenant, l.model, l.background, l.responses, l.total_p50, l.total_p95, l.first_token_p50,
    l.first_token_p95, l.queue_p50, l.queue_p95, l.tokens_per_second_p50
from (
    select date_trunc('hour', min(finished_at), 'UTC') as first, max(finished_at) as last from usage_ledger
) as b
cross join lateral generate_series(b.first, b.last, interval '1 hour') as h (hour)
cross join lateral (
    select
        tenant, model, background, count(*) as responses,
        percentile_cont(0.5) within group (order by extract(epoch from finished_at - started_at)::float8) as total_p50,
        percentile_cont(0.95) within group (order by extract(epoch from finished_at - started_at)::float8) as total_p95,
        percentile_cont(0.5) within group (order by extract(epoch from first_token_at - started_at)::float8)
            as first_token_p50,
        percentile_cont(0.95) within group (order by extract(epoch from first_token_at - started_at)::float8)
            as first_token_p95,
        percentile_cont(0.5) within group (order by queue_seconds) as queue_p50,
        percentile_cont(0.95) within group (order by queue_seconds) as queue_p95,
        percentile_cont(0.5) within group (
            order by output_tokens / nullif(extract(epoch from finished_at - first_token_at)::float8, 0)
        ) as tokens_per_second_p50
    from usage_ledger
    where finished_at >= h.hour and finished_at < h.hour + interval '1 hour' and status = 'completed'
    group by tenant, model, background
) as l;
comment on view admin.latency_hourly is 'percentiles over completed responses, stored or not; name the hours, which an index finds';
comment on column admin.latency_hourly.hour is 'in which they ended';
comment on column admin.latency_hourly.tenant is 'whose they are';
comment on column admin.latency_hourly.model is 'the model that was asked';
comment on column admin.latency_hourly.background is 'they ran whether or not a client waited';
comment on column admin.latency_hourly.responses is 'how many';
comment on column admin.latency_hourly.total_p50 is 'seconds from acceptance to end';
comment on column admin.latency_hourly.total_p95 is 'seconds from acceptance to end';
comment on column admin.latency_hourly.first_token_p50 is 'seconds from acceptance to the first token';
comment on column admin.latency_hourly.first_token_p95 is 'seconds from acceptance to the first token';
comment on column admin.latency_hourly.queue_p50 is 'seconds from the engine''s acceptance to its first step';
comment on column admin.latency_hourly.queue_p95 is 'seconds from the engine''s acceptance to its first step';
comment on column admin.latency_hourly.tokens_per_second_p50 is 'of one response, from its first token on';

create view admin.failures_daily with (security_invoker) as
select
    day, tenant, status as outcome, error_code, model, null::text as route, null::integer as http_status,
    responses as requests
from admin.usage_daily
where status <> 'completed'
union all
select
    d.begins::date, r.tenant, 'refused', r.error_code, null, r.route, r.status, r.requests
from (
    select date_trunc('day', min(hour) at time zone 'utc') as first, max(hour) at time zone 'utc' as last
    from refused_requests
) as b
cross join lateral generate_series(b.first, b.last, interval '1 day') as d (begins)
cross join lateral (
    select nullif(tenant, '') as tenant, nullif(error_code, '') as error_code, nullif(route, '') as route, status,
        sum(requests)::bigint as requests
    from refused_requests
    where hour >= d.begins at time zone 'utc' and hour < (d.begins + interval '1 day') at time zone 'utc'
    group by 1, 2, 3, 4
) as r;
comment on view admin.failures_daily is 'responses that did not complete, and requests that were answered with an error; sum the rows';
comment on column admin.failures_daily.day is 'in UTC';
comment on column admin.failures_daily.tenant is 'whose they are; null: not known, as with a wrong key';
comment on column admin.failures_daily.outcome is 'failed, incomplete or cancelled: a response; refused: a request';
comment on column admin.failures_daily.error_code is 'of the error object; null: none';
comment on column admin.failures_daily.model is 'of a response';
comment on column admin.failures_daily.route is 'of a request: the template of the address; null: no such address';
comment on column admin.failures_daily.http_status is 'of a request';
comment on column admin.failures_daily.requests is 'how many';

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
