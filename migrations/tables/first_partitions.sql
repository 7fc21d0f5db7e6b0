-- The first partitions of the tables that are partitioned by time, and those for rows that no other takes
do $$
declare
    bound timestamptz := date_trunc('day', clock_timestamp() + interval '15 days', 'UTC');
    parent text;
    part text;
begin
    foreach parent in array array['responses', 'items', 'response_streams', 'usage_ledger'] loop
        part := format('%s_before_%s', parent, to_char(bound at time zone 'UTC', 'YYYYMMDD'));
        execute format('create table %I (like %I including all)', part, parent);
        execute format('alter table %I attach partition %I for values from (minvalue) to (%L)', parent, part,
            holdfast_uuid_at(bound));
        execute format('create table %I partition of %I default', parent || '_default', parent);
        perform holdfast_set_autovacuum(part::regclass), holdfast_set_autovacuum((parent || '_default')::regclass);
        execute format('analyze %I', parent);
    end loop;
end $$;
