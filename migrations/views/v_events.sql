-- `v_events` with the response's uuid: every stream event of every stored response, one row an event, in order.
-- `delta` is a delta's text; `payload` the JSON of any other event, as the client received it.
-- A delta that holds a NUL cannot be Postgres text and is shown as its JSON string.
--
-- Postgres refuses to take anything out of JSON that has an escaped NUL anywhere in it, except the elements of
-- an array. So rows are taken apart as arrays, and a whole event's fields are read from a copy without NULs.
--
-- Each response's rows are found by the primary key. So a condition on `id` (or on `tenant` and `id`) reads one
-- stream, and `response_id`, which is computed, is for show.
create or replace view v_events as
select
    r.tenant,
    'resp_' || replace(r.id::text, '-', '') as response_id,
    k.first_seq + (e.position - 1)::int as sequence_number,
    coalesce(d.type, w.value ->> 'type') as type,
    case when d.type is null then (w.value ->> 'output_index')::int else k.output_index end as output_index,
    case
        when d.type is not null
            then d.prefix || '_' || replace(k.response_id::text, '-', '') || 'o' || to_hex(k.output_index)
        else coalesce(w.value ->> 'item_id', w.value -> 'item' ->> 'id')
    end as item_id,
    case
        when d.type is null then null
        when k.kind = 5 and strpos(e.value #>> '{}', '\u0000') = 0 then (e.value #>> '{}')::json ->> 0
        when e.value::text ~ '(?<!\\)(\\\\)*\\u0000' then e.value::text
        else e.value #>> '{}'
    end as delta,
    case when d.type is null then e.value end as payload,
    to_timestamp(k.at) as sent_at,
    r.id
from responses r
cross join lateral (
    select tenant, response_id, first_seq, kind, output_index, content_index, body, at
    from response_events_hot h
    where h.tenant = r.tenant and h.response_id = r.id
    union all
    select s.tenant, s.response_id, f.fields[1]::int, f.fields[3]::smallint, f.fields[4]::int, f.fields[5]::int,
           f.fields[7], f.fields[6]::double precision
    from response_streams s
    cross join lateral json_array_elements(
        case s.codec when 3 then holdfast_with_echo(s.body, r.request) else s.body end::json) as c (value)
    cross join lateral (
        select array_agg(p.value::text order by p.position) as fields
        from json_array_elements(c.value) with ordinality as p (value, position)
    ) as f
    where s.tenant = r.tenant and s.response_id = r.id
) as k
left join (
    values
        (1, 'response.output_text.delta', 'msg'),
        (2, 'response.reasoning_text.delta', 'rs'),
        (3, 'response.function_call_arguments.delta', 'fc'),
        (4, 'response.custom_tool_call_input.delta', 'ctc'),
        (5, 'response.output_text.delta', 'msg')
) as d (kind, type, prefix) on d.kind = k.kind
cross join lateral (
    select case
        when k.kind <> 0 then null
        when strpos(k.body, '\u0000') = 0 then k.body::json
        else regexp_replace(k.body, '(?<!\\)((\\\\)*)\\u0000', '\1', 'g')::json
    end as value
) as w
cross join lateral json_array_elements(
    case when k.kind = 0 then json_build_array(k.body::json) else k.body::json end
) with ordinality as e (value, position);
