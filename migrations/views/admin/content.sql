-- `admin.items`, `tool_calls`, `events`, `conversations`: what was said and called, and every stream event
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

create view admin.items with (security_invoker) as
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
comment on view admin.items is 'input and output items of stored responses';
comment on column admin.items.response_id is 'compare it with admin.uuid_of(''resp_…'')';
comment on column admin.items.response is 'response_id as the API shows it';
comment on column admin.items.tenant is 'whose it is';
comment on column admin.items.side is 'input or output';
comment on column admin.items.place is 'in its side, the first at 0';
comment on column admin.items.item is 'the item''s id';
comment on column admin.items.type is 'message, reasoning, function_call and so on';
comment on column admin.items.role is 'of a message';
comment on column admin.items.name is 'of a called tool';
comment on column admin.items.status is 'as the API shows it';
comment on column admin.items.payload is 'the item as JSON';
comment on column admin.items.size is 'bytes of the payload';
comment on column admin.items.created_at is 'when the row was written: input at the create, output at the end';
comment on column admin.items.text is 'what it says: the text of a message or of reasoning, the arguments of a call, the output of one';

create function admin.words(payload json) returns tsvector language sql immutable strict parallel safe
return to_tsvector('simple'::regconfig, left(regexp_replace(payload::text, '\\(u[0-9a-fA-F]{4}|.)', ' ', 'g'), 65536));
comment on function admin.words(json) is 'the words of an item, of its first 65,536 characters, names of fields among them';

create function admin.search(words text) returns setof admin.items language sql stable parallel safe
begin atomic
    select
        i.response_id, admin.name_of('resp_', i.response_id), i.tenant,
        case i.side when 0 then 'input' else 'output' end, i.idx, i.id, i.type, i.role, i.name, i.status,
        i.payload, i.size, i.created_at, admin.text_of(i.payload)
    from items i
    where admin.words(i.payload) @@ websearch_to_tsquery('simple'::regconfig, words);
end;
comment on function admin.search(text) is 'items with these words, by an index if `holdfast db text-search on` has made it';

create view admin.tool_calls with (security_invoker) as
select
    i.response_id,
    admin.name_of('resp_', i.response_id) as response,
    i.tenant,
    i.created_at,
    i.type,
    coalesce(i.name, i.type) as tool,
    case when i.type = 'mcp_call' and strpos(i.payload::text, '\u0000') = 0 then i.payload ->> 'server_label' end
        as server_label,
    i.status,
    i.status = 'failed' as failed,
    case when i.status = 'failed' and strpos(i.payload::text, '\u0000') = 0 then i.payload ->> 'error' end as error,
    i.seconds,
    i.call_id,
    i.id as item
from items i
where i.side = 1 and i.type like '%\_call';
comment on view admin.tool_calls is 'calls that models made, those that the client carries out among them';
comment on column admin.tool_calls.response_id is 'compare it with admin.uuid_of(''resp_…'')';
comment on column admin.tool_calls.response is 'response_id as the API shows it';
comment on column admin.tool_calls.tenant is 'whose it is';
comment on column admin.tool_calls.created_at is 'when its response ended';
comment on column admin.tool_calls.type is 'mcp_call, function_call, code_interpreter_call and so on';
comment on column admin.tool_calls.tool is 'the tool''s name, or the type of a tool without one';
comment on column admin.tool_calls.server_label is 'of an MCP call';
comment on column admin.tool_calls.status is 'completed, incomplete or failed';
comment on column admin.tool_calls.failed is 'the tool or its server answered with an error';
comment on column admin.tool_calls.error is 'that error as JSON';
comment on column admin.tool_calls.seconds is 'how long the call took that the server made; null: the client made it, or a replica that died';
comment on column admin.tool_calls.call_id is 'of a call that the client carries out';
comment on column admin.tool_calls.item is 'the item''s id';

create view admin.events as
select id, response_id as response, tenant, sequence_number, type, output_index, item_id, delta, payload, sent_at
from v_events;
comment on view admin.events is 'every stream event of every stored response, one row each; name the response by its id';
comment on column admin.events.id is 'of the response: compare it with admin.uuid_of(''resp_…'')';
comment on column admin.events.response is 'the response''s id as the API shows it; no index finds it';
comment on column admin.events.tenant is 'whose it is';
comment on column admin.events.sequence_number is 'its place in the stream, the first at 0';
comment on column admin.events.type is 'such as response.output_text.delta';
comment on column admin.events.output_index is 'the place of its item in the output';
comment on column admin.events.item_id is 'the id of that item';
comment on column admin.events.delta is 'the text of a delta';
comment on column admin.events.payload is 'the JSON of any other event, as the client received it';
comment on column admin.events.sent_at is 'when it was generated';

create view admin.conversations with (security_invoker) as
select
    c.id,
    admin.name_of('conv_', c.id) as conversation,
    c.tenant,
    c.created_at,
    coalesce(i.items, 0) as items,
    c.metadata
from conversations c
left join (
    select tenant, conversation_id, count(*) as items from conversation_items group by tenant, conversation_id
) as i on i.tenant = c.tenant and i.conversation_id = c.id;
comment on view admin.conversations is 'conversations and how many items they hold';
comment on column admin.conversations.id is 'compare it with admin.uuid_of(''conv_…'')';
comment on column admin.conversations.conversation is 'the id as the API shows it';
comment on column admin.conversations.tenant is 'whose it is';
comment on column admin.conversations.created_at is 'when it was made';
comment on column admin.conversations.items is 'how many it holds';
comment on column admin.conversations.metadata is 'what the client has attached';
