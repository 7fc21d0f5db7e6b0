-- Every stream event of every stored response, running or finished, one row an event, in the order sent.
-- `delta` is a delta's text; `payload` the JSON of any other event, as the client received it.
-- A delta that holds a NUL cannot be Postgres text and is shown as its JSON string.
create or replace view v_events as
with chunks as (
    select tenant, response_id, first_seq, kind, output_index, content_index, body, at
    from response_events_hot
    union all
    select s.tenant, s.response_id, (c.value ->> 0)::int, (c.value ->> 2)::smallint,
           (c.value ->> 3)::int, (c.value ->> 4)::int, (c.value -> 6)::text, (c.value ->> 5)::double precision
    from response_streams s
    cross join lateral json_array_elements(s.body::json) as c (value)
)
select
    k.tenant,
    'resp_' || replace(k.response_id::text, '-', '') as response_id,
    k.first_seq + (e.position - 1)::int as sequence_number,
    coalesce(d.type, e.value ->> 'type') as type,
    case when d.type is null then (e.value ->> 'output_index')::int else k.output_index end as output_index,
    case
        when d.type is not null
            then d.prefix || '_' || replace(k.response_id::text, '-', '') || 'o' || to_hex(k.output_index)
        else coalesce(e.value ->> 'item_id', e.value -> 'item' ->> 'id')
    end as item_id,
    case
        when d.type is null then null
        when e.value::text like '%\u0000%' then e.value::text
        else e.value #>> '{}'
    end as delta,
    case when d.type is null then e.value end as payload,
    to_timestamp(k.at) as sent_at
from chunks k
left join (
    values (1, 'response.output_text.delta', 'msg'), (2, 'response.reasoning_text.delta', 'rs')
) as d (kind, type, prefix) on d.kind = k.kind
cross join lateral json_array_elements(
    case when k.kind = 0 then json_build_array(k.body::json) else k.body::json end
) with ordinality as e (value, position);
