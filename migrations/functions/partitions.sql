-- Partitions by time: the bounds of UUIDv7, new partitions, their statistics; and shorter streams.
-- A server whose role has no right to change the schema makes partitions with `holdfast_add_partition`.

-- The least UUIDv7 of that time or later; ids begin with 48 bits of Unix milliseconds.
create or replace function holdfast_uuid_at(at timestamptz) returns uuid
language sql immutable strict parallel safe as $$
    select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid
$$;

-- The time at which a UUIDv7 was made.
create or replace function holdfast_time_of(id uuid) returns timestamptz
language sql immutable strict parallel safe as $$
    select to_timestamp(('x0000' || left(replace(id::text, '-', ''), 12))::bit(64)::bigint / 1000.0)
$$;

create or replace function holdfast_set_autovacuum(part regclass) returns void language plpgsql as $$
begin
    execute format('alter table %s set (
        autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_insert_scale_factor = 0.05, toast.autovacuum_vacuum_scale_factor = 0.02,
        toast.autovacuum_vacuum_insert_scale_factor = 0.05)', part);
end $$;

-- Makes the partition of a table for a range of time between full hours; returns its name. Refused are other
-- tables, ranges that are over or more than a year away, and ones that others overlap. Waits at most 0.2 s for
-- a lock. It is made beside the table and attached, which locks out nobody but from the empty default one.
create or replace function holdfast_add_partition(parent text, first timestamptz, last timestamptz)
returns text security definer language plpgsql as $$
declare
    name text := format('%s_p%s', parent, to_char(first at time zone 'UTC', 'YYYYMMDDHH24'));
begin
    if parent not in ('responses', 'items', 'response_streams', 'usage_ledger') then
        raise exception '% is not partitioned by time', parent;
    end if;
    if date_trunc('hour', first) <> first or date_trunc('hour', last) <> last or last <= first
        or last - first > interval '62 days' or last <= clock_timestamp()
        or last > clock_timestamp() + interval '1 year' then
        raise exception 'no partition is made from % to %', first, last;
    end if;
    perform set_config('lock_timeout', '200ms', true);
    execute format('create table %I (like %I including all)', name, parent);
    perform holdfast_set_autovacuum(name::regclass);
    execute format('alter table %I attach partition %I for values from (%L) to (%L)', parent, name,
        holdfast_uuid_at(first), holdfast_uuid_at(last));
    return name;
end $$;

-- Gathers the planner's statistics of a partitioned table: autovacuum does it for the partitions only. Does
-- nothing while they are of about as many rows as the partitions have, and not older than a day.
create or replace function holdfast_analyze(parent text) returns void security definer language plpgsql as $$
declare
    counted float8;
    present float8;
begin
    if parent not in ('responses', 'items', 'response_streams', 'usage_ledger') then
        raise exception '% is not partitioned by time', parent;
    end if;
    select greatest(reltuples, 0) into counted from pg_class where oid = parent::regclass;
    select coalesce(sum(greatest(c.reltuples, 0)), 0) into present
    from pg_inherits i join pg_class c on c.oid = i.inhrelid where i.inhparent = parent::regclass;
    if abs(present - counted) > 1000 + 0.1 * present or exists (
        select from pg_stat_all_tables
        where relid = parent::regclass and last_analyze < clock_timestamp() - interval '1 day') then
        execute format('analyze %I', parent);
    end if;
end $$;

-- A folded stream (its rows as one text) without the large parameters that events repeat of the request,
-- and with them. Both replace text in syntax: inside of JSON strings quotes are escaped. A body or request that
-- has what stands for a parameter already, or an escaped NUL, which Postgres cannot take JSON apart with, stays.
create or replace function holdfast_without_echo(body text, request json) returns text
language sql immutable parallel safe as $$
    select case
        when request is null or strpos(body, '"\u001a"') > 0 or strpos(request::text, '\u0000') > 0 then body
        else replace(replace(replace(body,
            '"instructions":' || coalesce((request -> 'instructions')::text, 'none'), '"instructions":"\u001a"'),
            '"tools":' || coalesce((request -> 'tools')::text, 'none'), '"tools":"\u001a"'),
            '"text":' || coalesce((request -> 'text')::text, 'none'), '"text":"\u001a"') end
$$;

create or replace function holdfast_with_echo(body text, request json) returns text
language sql immutable parallel safe as $$
    select case when strpos(body, '"\u001a"') = 0 then body else replace(replace(replace(body,
        '"text":"\u001a"', '"text":' || coalesce((request -> 'text')::text, 'null')),
        '"tools":"\u001a"', '"tools":' || coalesce((request -> 'tools')::text, 'null')),
        '"instructions":"\u001a"', '"instructions":' || coalesce((request -> 'instructions')::text, 'null')) end
$$;
