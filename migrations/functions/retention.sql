-- Removal of whole partitions: what of one is kept, its detachment, and what is left to do before it is dropped.
-- A server whose role has no right to change the schema removes partitions with these functions.

-- The range of a partition of the four tables, `low` included, `high` not; no row for any other table.
create or replace function holdfast_range_of(part regclass) returns table (parent name, low uuid, high uuid)
language sql stable as $$
    select p.relname, coalesce(bounds[1], '00000000-0000-0000-0000-000000000000')::uuid, bounds[2]::uuid
    from pg_inherits i join pg_class c on c.oid = i.inhrelid join pg_class p on p.oid = i.inhparent
    cross join lateral regexp_match(pg_get_expr(c.relpartbound, c.oid),
        'FROM \((?:MINVALUE|''([0-9a-f-]{36})'')\) TO \(''([0-9a-f-]{36})''\)') as m (bounds)
    where c.oid = part and p.relnamespace = current_schema()::regnamespace
      and p.relname in ('responses', 'items', 'response_streams', 'usage_ledger')
$$;

-- The responses of a partition, attached or detached, that stay: those that have not expired or not ended for
-- `quiet` seconds, those from which a response elsewhere goes on, and the ones before them. At most `most`.
create or replace function holdfast_surviving_responses(part regclass, quiet float8, most bigint)
returns table (tenant text, id uuid) security definer language plpgsql as $$
declare
    low uuid;
    high uuid;
    attached boolean := false;
begin
    select r.low, r.high, true into low, high, attached from holdfast_range_of(part) r
    where r.parent = 'responses';
    if not coalesce(attached, false) then
        if part::text !~ '^responses_detached_[0-9]{10}$' then
            raise exception '% is no partition of responses', part;
        end if;
        execute format('select p.id from %s p order by p.id limit 1', part) into low;
        execute format('select p.id from %s p order by p.id desc limit 1', part) into high;
    end if;
    return query execute format($query$
        with recursive kept (tenant, id) as (
            (
                (select p.tenant, p.id from %1$s p
                 where p.status in ('queued', 'in_progress') or p.finished_at is null
                    or p.finished_at > statement_timestamp() - make_interval(secs => $1)
                    or (p.deleted_at is null
                        and (p.expires_at is null or p.expires_at > statement_timestamp()))
                 limit $2)
                union all
                (select n.tenant, n.previous_id from (select distinct p.tenant from %1$s p) t
                 join responses n on n.tenant = t.tenant and n.previous_id between %2$L and %3$L %4$s
                 limit $2)
            )
            union
            select p.tenant, p.previous_id from kept k join %1$s p on p.tenant = k.tenant and p.id = k.id
            where p.previous_id is not null
        )
        select k.tenant, k.id from kept k join %1$s p on p.tenant = k.tenant and p.id = k.id limit $2
        $query$, part, low, high,
        case when attached then format('and (n.id < %L or n.id >= %L)', low, high) end)
    using quiet, most;
end $$;

-- The entries of a partition of the ledger that stay: younger ones, those of stored responses, and those that
-- the sums by day do not have. At most `most`.
create or replace function holdfast_surviving_entries(part regclass, days integer, most bigint)
returns table (tenant text, id uuid) security definer language plpgsql as $$
begin
    if part::text !~ '^usage_ledger_detached_[0-9]{10}$'
        and not exists (select from holdfast_range_of(part) r where r.parent = 'usage_ledger') then
        raise exception '% is no partition of the ledger', part;
    end if;
    return query execute format($query$
        select l.tenant, l.response_id from %s l
        where l.finished_at >= statement_timestamp() - make_interval(days => $1)
           or exists (select from responses r where r.tenant = l.tenant and r.id = l.response_id)
        limit $2 $query$, part)
    using days, most;
end $$;

-- Moves the rows of these responses from a detached table back into the table that it was a partition of.
-- By index: a plan that reads the whole of a large table would keep everybody waiting.
create or replace function holdfast_move_rows(detached regclass, parent text, tenants text[], ids uuid[])
returns void language plpgsql set enable_hashjoin = off set enable_mergejoin = off as $$
declare
    key text := case parent when 'responses' then 'id' else 'response_id' end;
    columns text;
begin
    if cardinality(ids) = 0 then
        return;
    end if;
    select string_agg(quote_ident(attname), ', ' order by attnum) into columns from pg_attribute
    where attrelid = parent::regclass and attnum > 0 and not attisdropped;
    execute format($move$
        with moved as (
            delete from %1$s d using unnest($1, $2) as k (tenant, id)
            where d.tenant = k.tenant and d.%2$I = k.id returning d.*)
        insert into %3$I (%4$s) select %4$s from moved $move$, detached, key, parent, columns)
    using tenants, ids;
end $$;

-- Detaches partitions of one range, which ended `age` ago, and keeps the rows of these responses: they go to the
-- default partitions. One transaction locks everybody out of the tables meanwhile; it waits at most 0.1 s for
-- each lock. Refused are other tables, and ranges younger than a day or that age.
create or replace function holdfast_detach(parts text[], age interval, tenants text[], ids uuid[])
returns void security definer language plpgsql as $$
declare
    one record;
    detached text;
begin
    if cardinality(parts) <> (
        select count(*) from unnest(parts) u cross join lateral holdfast_range_of(to_regclass(quote_ident(u))) r
        where r.high <= holdfast_uuid_at(clock_timestamp() - greatest(age, interval '1 day')))
    then
        raise exception 'not all of % are partitions older than %', parts, age;
    end if;
    perform set_config('lock_timeout', '100ms', true);
    for one in select u.part, r.parent, r.high
        from unnest(parts) with ordinality u (part, place)
        cross join lateral holdfast_range_of(to_regclass(quote_ident(u.part))) r order by u.place
    loop
        execute format('lock table only %I in access exclusive mode', one.parent);
    end loop;
    for one in select u.part, r.parent, r.high
        from unnest(parts) with ordinality u (part, place)
        cross join lateral holdfast_range_of(to_regclass(quote_ident(u.part))) r order by u.place
    loop
        detached := one.parent || '_detached_'
            || to_char(holdfast_time_of(one.high) at time zone 'UTC', 'YYYYMMDDHH24');
        execute format('alter table %I detach partition %I', one.parent, one.part);
        execute format('alter table %I rename to %I', one.part, detached);
        perform holdfast_move_rows(quote_ident(detached)::regclass, one.parent, tenants, ids);
    end loop;
end $$;

-- Does for the responses of a detached partition, named by the end of its range, all that the deletion of each
-- would have done, and drops it; returns how many responses readers have lost, by tenant. In one transaction:
-- so nothing is done twice. What came to be needed before the detachment and was not moved goes back first.
create or replace function holdfast_drop_responses(ended text, quiet float8)
returns table (tenant text, responses bigint) security definer language plpgsql as $$
declare
    gone regclass := ('responses_detached_' || ended)::regclass;
    gone_items regclass := to_regclass('items_detached_' || ended);
    gone_streams regclass := to_regclass('response_streams_detached_' || ended);
    tenants text[];
    ids uuid[];
begin
    if ended !~ '^[0-9]{10}$' then
        raise exception '% is no end of a range', ended;
    end if;
    select coalesce(array_agg(k.tenant), '{}'), coalesce(array_agg(k.id), '{}') into tenants, ids
    from holdfast_surviving_responses(gone, quiet, 9223372036854775807) k;
    perform holdfast_move_rows(gone, 'responses', tenants, ids),
        holdfast_move_rows(gone_items, 'items', tenants, ids),
        holdfast_move_rows(gone_streams, 'response_streams', tenants, ids);
    execute format($do$
        insert into storage_changes (tenant, bytes, day)
        select tenant, -sum(bytes), cast(statement_timestamp() at time zone 'utc' as date) from (
            select tenant, size as bytes from %1$s
            union all select tenant, size + coalesce(octet_length(for_model), 0) from %2$s
            union all select tenant, size from %3$s) as removed
        group by tenant having sum(bytes) <> 0 $do$, gone, gone_items, gone_streams);
    execute format($do$
        update item_images u set removed_at = clock_timestamp() from %s d
        where u.tenant = d.tenant and u.owner = d.id and u.removed_at is null $do$, gone);
    execute format($do$
        delete from response_events_hot h using %s d where h.tenant = d.tenant and h.response_id = d.id
        $do$, gone);
    -- deleted responses that only these needed as history: the next purge looks at them
    execute format($do$
        update responses p set expires_at = statement_timestamp()
        from (select distinct d.tenant, d.previous_id from %1$s d where d.previous_id is not null
              and not exists (select from %1$s o where o.tenant = d.tenant and o.id = d.previous_id)) d
        where p.tenant = d.tenant and p.id = d.previous_id and p.deleted_at is not null
          and (p.expires_at is null or p.expires_at > statement_timestamp()) $do$, gone);
    return query execute format(
        'select d.tenant, count(*) from %s d where d.deleted_at is null group by d.tenant', gone);
    execute format('drop table %s, %s, %s', gone, gone_items, gone_streams);
end $$;

-- Drops a detached partition of the ledger; what came to be needed goes back first.
create or replace function holdfast_drop_entries(ended text, days integer) returns void
security definer language plpgsql as $$
declare
    gone regclass := ('usage_ledger_detached_' || ended)::regclass;
    tenants text[];
    ids uuid[];
begin
    if ended !~ '^[0-9]{10}$' then
        raise exception '% is no end of a range', ended;
    end if;
    select coalesce(array_agg(k.tenant), '{}'), coalesce(array_agg(k.id), '{}') into tenants, ids
    from holdfast_surviving_entries(gone, days, 9223372036854775807) k;
    perform holdfast_move_rows(gone, 'usage_ledger', tenants, ids);
    execute format('drop table %s', gone);
end $$;
