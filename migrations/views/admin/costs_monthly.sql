-- `admin.costs_monthly`: what tenants have cost, by model and month
-- The months come from a recursive query, of which the planner expects few rows. Of generate_series it expects a
-- thousand, and then compiles the plan, which takes longer than running it.
create or replace view admin.costs_monthly with (security_invoker) as
with recursive months (month) as (
    select date_trunc('month', least(
        (select min(day) from usage_days), (select min(day) from usage_changes),
        (select min(finished_at)::date - 1 from usage_ledger where kind is null)
    )::timestamp)
    union all
    select month + interval '1 month' from months
    where month + interval '1 month' <= clock_timestamp() at time zone 'utc' + interval '1 day'
)
select m.month::date as month, u.tenant, u.model, u.responses, u.tokens, u.cost, u.unpriced
from months as m
cross join lateral (
    select
        tenant, model, sum(responses)::bigint as responses, sum(input_tokens + output_tokens)::bigint as tokens,
        sum(cost) as cost, sum(unpriced)::bigint as unpriced
    from admin.usage_daily
    where day >= m.month::date and day < (m.month + interval '1 month')::date
    group by tenant, model
) as u;
comment on view admin.costs_monthly is 'what tenants have cost at the prices of `holdfast prices`';
comment on column admin.costs_monthly.month is 'its first day, in UTC';
comment on column admin.costs_monthly.tenant is 'whose responses they are';
comment on column admin.costs_monthly.model is 'the model that was asked';
comment on column admin.costs_monthly.responses is 'how many';
comment on column admin.costs_monthly.tokens is 'of input and output';
comment on column admin.costs_monthly.cost is 'of the responses that have one';
comment on column admin.costs_monthly.unpriced is 'responses whose model had no price, which are not in the cost';
