-- the questions of docs/sql.md: a title, and a line with the query

-- Names
select response, tenant, status, error_code, total_seconds, request_id from admin.responses where id = admin.uuid_of('resp_…')

-- 1. Who used how much, by tenant, model and day?
select day, tenant, model, sum(responses) as responses, sum(input_tokens) as input, sum(output_tokens) as output from admin.usage_daily where day > current_date - 30 group by 1, 2, 3 order by 1 desc, 4 desc

-- 2. How long do responses take?
select date_trunc('hour', finished_at, 'UTC') as hour, model, count(*) as responses, percentile_cont(array[0.5, 0.95]) within group (order by total_seconds) as p50_p95 from admin.usage where finished_at > now() - interval '1 day' and status = 'completed' group by 1, 2 order by 1 desc, 2

-- 3. How long until the first token, and how much of it is waiting?
select hour, tenant, model, first_token_p50, first_token_p95, queue_p95 from admin.latency_hourly where hour > now() - interval '1 day' and not background order by first_token_p95 desc nulls last limit 20

-- 4. What failed, and what was refused?
select day, outcome, error_code, route, sum(requests) as requests from admin.failures_daily where day > current_date - 7 group by 1, 2, 3, 4 order by 1 desc, 5 desc

-- 4. What failed, and what was refused? (2)
select tenant, key_name, key_id, error_code, sum(requests) as requests from admin.refused_hourly where hour > now() - interval '1 day' and http_status = 429 group by 1, 2, 3, 4 order by 5 desc

-- 4. What failed, and what was refused? (3)
select prompt_hash, status, error_code, count(*) as responses, max(response) as newest from admin.responses where status in ('failed', 'incomplete') and created_at > now() - interval '30 days' group by 1, 2, 3 order by 4 desc limit 20

-- 4. What failed, and what was refused? (4)
select tenant, key_name, sum(responses) filter (where status = 'incomplete') as cut, sum(responses) as responses from admin.usage_daily where day > current_date - 30 group by 1, 2 order by 3 desc nulls last

-- 4. What failed, and what was refused? (5)
select cancel_reason, count(*) as responses, max(response) as newest from admin.usage where status = 'cancelled' and finished_at > now() - interval '7 days' group by 1 order by 2 desc

-- 5. Which conversations are the longest?
select chain_id, max(turn) as turns, sum(output_tokens) as output from admin.responses where created_at > now() - interval '1 day' group by 1 order by 2 desc limit 10

-- 5. Which conversations are the longest? (2)
select turn, response, status, created_at from admin.chain('resp_…')

-- 5. Which conversations are the longest? (3)
select conversation, tenant, items, created_at from admin.conversations order by items desc limit 10

-- 6. Which tools are called, how long do they take, and which fail?
select tool, count(*) as calls, count(*) filter (where failed) as failed, percentile_cont(0.95) within group (order by seconds) as p95 from admin.tool_calls where created_at > now() - interval '7 days' group by 1 order by 2 desc

-- 6. Which tools are called, how long do they take, and which fail? (2)
select response, count(*) as calls, count(distinct tool) as tools, count(*) filter (where failed) as failed from admin.tool_calls where created_at > now() - interval '1 day' group by 1 order by 2 desc limit 20

-- 6. Which tools are called, how long do they take, and which fail? (3)
select r.chain_id, count(*) as calls, count(distinct c.tool) as tools, max(r.turn) as turns from admin.tool_calls c join admin.responses r on r.tenant = c.tenant and r.id = c.response_id where c.created_at > now() - interval '7 days' group by 1 order by 2 desc limit 20

-- 7. How fast are tokens generated?
select model, percentile_cont(array[0.05, 0.5]) within group (order by tokens_per_second) as p5_p50 from admin.usage where finished_at > now() - interval '1 day' and status = 'completed' group by 1

-- 8. What does it cost?
select month, tenant, sum(cost) as cost, sum(unpriced) as without_price from admin.costs_monthly where month > now() - interval '1 month' group by 1, 2 order by 1 desc, 3 desc

-- 8. What does it cost? (2)
select tenant, end_user, sum(cost) as cost, sum(responses) as responses from admin.users_daily where day > current_date - 31 group by 1, 2 order by 3 desc nulls last limit 20

-- 9. What is not finished, and where does it run?
select response, tenant, status, age, deaths, host, pid, replica_state, heartbeat_age from admin.unfinished where age > interval '10 minutes' order by age desc

-- 10. Who are the heaviest users, and what did one of them ask?
select tenant, end_user, sum(responses) as responses, sum(output_tokens) as output from admin.users_daily where day > current_date - 7 group by 1, 2 order by 4 desc limit 20

-- 10. Who are the heaviest users, and what did one of them ask? (2)
select response, created_at, model, status from admin.responses where tenant = 'acme' and end_user = 'user-42' order by created_at desc limit 50

-- 10. Who are the heaviest users, and what did one of them ask? (3)
select tenant, end_user, count(distinct chain_id) as chains, max(turn) as longest from admin.responses where created_at > now() - interval '30 days' and end_user is not null group by 1, 2 order by 3 desc limit 20

-- 10. Who are the heaviest users, and what did one of them ask? (4)
select date_trunc('week', first_day)::date as week, count(*) as users from (select min(day) as first_day from admin.users_daily group by tenant, end_user) as u group by 1 order by 1 desc

-- 11. How much of the input was cached?
select day, model, round(sum(cached_tokens) / nullif(sum(input_tokens), 0), 3) as cached from admin.usage_daily where day > current_date - 7 group by 1, 2 order by 1 desc, 2

-- 12. Who stores how much, and which tables are large?
select tenant, size from admin.storage order by bytes desc

-- 12. Who stores how much, and which tables are large? (2)
select name, size from admin.tables order by bytes desc limit 10

-- 12. Who stores how much, and which tables are large? (3)
select day, sum(added) as added, sum(removed) as removed, sum(growth) as growth from admin.storage_daily where day > current_date - 30 group by 1 order by 1 desc

-- 13. What do variants do?
select metadata ->> 'team' as team, count(*) as responses, sum(input_tokens) as input, sum(output_tokens) as output, sum(cost) as cost from admin.usage where finished_at > now() - interval '30 days' and metadata is not null group by 1 order by 5 desc nulls last

-- 13. What do variants do? (2)
select metadata ->> 'variant' as variant, count(*) as responses, avg(output_tokens)::int as output, percentile_cont(0.5) within group (order by total_seconds) as p50, avg((status = 'completed')::int) as completed from admin.usage where finished_at > now() - interval '30 days' and metadata is not null group by 1 order by 1

-- 13. What do variants do? (3)
select prompt_id, prompt_version, count(*) as responses, avg(output_tokens)::int as output, percentile_cont(0.5) within group (order by total_seconds) as p50, avg((status = 'completed')::int) as completed from admin.responses where created_at > now() - interval '7 days' and prompt_id is not null group by 1, 2 order by 1, 2

-- 14. Who asks with what?
select user_agent, count(*) as responses, count(distinct tenant) as tenants, max(created_at) as newest from admin.responses where created_at > now() - interval '30 days' group by 1 order by 2 desc limit 20

-- 14. Who asks with what? (2)
select prompt_hash, count(*) as responses, max(response) as newest from admin.responses where created_at > now() - interval '30 days' group by 1 having count(*) > 1 order by 2 desc limit 20

-- 14. Who asks with what? (3)
select date_trunc('hour', finished_at, 'UTC') as hour, count(*) filter (where first_token_seconds > 2) as slow, count(*) as responses from admin.usage where finished_at > now() - interval '7 days' group by 1 order by 2 desc limit 24

-- More lines
select sequence_number, type, delta, sent_at from admin.events where id = admin.uuid_of('resp_…') order by 1

-- More lines (2)
select side, place, type, role, text from admin.items where response_id = admin.uuid_of('resp_…') order by side, place

-- More lines (3)
select tenant, id, name, last_used_at, expires_at, usable from admin.keys order by last_used_at desc nulls last

-- More lines (4)
select response, status, error_code from admin.usage where finished_at > now() - interval '1 day' and request_id = 'req_…'

-- Words in the history
select response, side, type, created_at from admin.search('"weather in Paris"') where tenant = 'acme' order by created_at desc limit 20

-- Words in the history (2)
select r.tenant, r.end_user, count(*) as items, max(s.created_at) as newest from admin.search('refund') as s join admin.responses as r on r.tenant = s.tenant and r.id = s.response_id where s.side = 'input' and s.role = 'user' group by 1, 2 order by 3 desc limit 50
