-- What has its owner's rights finds names in this schema alone, and may be used by the server's role alone.
do $$
declare one regprocedure;
begin
    for one in select oid from pg_proc
        where pronamespace = current_schema()::regnamespace and proname like 'holdfast\_%' loop
        if (select prosecdef from pg_proc where oid = one) then
            execute format('alter function %s set search_path = %I, pg_temp', one, current_schema());
            execute format('revoke all on function %s from public', one);
            if exists (select from pg_roles where rolname = 'holdfast_server') then
                execute format('grant execute on function %s to holdfast_server', one);
            end if;
        end if;
    end loop;
end $$;
