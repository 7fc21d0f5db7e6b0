-- `admin.storage`, `tables`, `keys`, `storage_daily`: stored bytes of tenants and tables; API keys without secrets
create view admin.storage with (security_invoker) as
select tenant, sum(bytes)::bigint as bytes, pg_size_pretty(sum(bytes)::bigint) as size
from storage_changes
group by tenant;
comment on view admin.storage is 'stored bytes of each tenant, as its quota counts them: before compression';
comment on column admin.storage.tenant is 'whose they are';
comment on column admin.storage.bytes is 'of responses, items, streams, conversations and pictures';
comment on column admin.storage.size is 'the same to read';

create view admin.tables as
select
    c.oid::regclass::text as name,
    c.reltuples::bigint as rows,
    s.bytes,
    pg_size_pretty(s.bytes) as size,
    obj_description(c.oid, 'pg_class') as comment
from pg_class c
cross join lateral (
    select pg_total_relation_size(c.oid) + coalesce(sum(pg_total_relation_size(p.relid)), 0)::bigint as bytes
    from pg_partition_tree(c.oid) p
    where p.relid <> c.oid
) as s
where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition;
comment on view admin.tables is 'bytes of each table on disk, with its partitions, indexes and long values';
comment on column admin.tables.name is 'the table';
comment on column admin.tables.rows is 'about how many, as of the last analyze';
comment on column admin.tables.bytes is 'on disk';
comment on column admin.tables.size is 'the same to read';
comment on column admin.tables.comment is 'what it holds';

create view admin.keys with (security_invoker) as
select
    tenant, id, name, scopes, created_at, first_used_at, last_used_at, expires_at, revoked_at, replaced_by,
    revoked_at is null and (expires_at is null or expires_at > clock_timestamp()) as usable
from api_keys;
comment on view admin.keys is 'API keys, without what they could be recognised by';
comment on column admin.keys.tenant is 'whose it is';
comment on column admin.keys.id is 'its public id';
comment on column admin.keys.name is 'what its maker called it';
comment on column admin.keys.scopes is 'what it may do: read, write, admin, metrics';
comment on column admin.keys.created_at is 'when it was made';
comment on column admin.keys.first_used_at is 'when it was used first';
comment on column admin.keys.last_used_at is 'when it was used last, to the minute';
comment on column admin.keys.expires_at is 'from when on it is refused';
comment on column admin.keys.revoked_at is 'when it was revoked';
comment on column admin.keys.replaced_by is 'the key that rotation made in its place';
comment on column admin.keys.usable is 'neither expired nor revoked';

create view admin.storage_daily with (security_invoker) as
select tenant, day, sum(added)::bigint as added, sum(removed)::bigint as removed,
    sum(added - removed)::bigint as growth
from (
    select tenant, day, added, removed from storage_days
    union all
    select tenant, day, greatest(bytes, 0), greatest(-bytes, 0) from storage_changes where day is not null
) as d
group by tenant, day;
comment on view admin.storage_daily is 'bytes that each tenant stored and removed by day, as its quota counts them';
comment on column admin.storage_daily.tenant is 'whose they are';
comment on column admin.storage_daily.day is 'in UTC';
comment on column admin.storage_daily.added is 'bytes that were stored';
comment on column admin.storage_daily.removed is 'bytes that were removed';
comment on column admin.storage_daily.growth is 'added less removed';
