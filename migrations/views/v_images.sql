-- Every stored picture, one row a picture of a tenant, without its bytes, and how many items name it.
create or replace view v_images as
select
    i.tenant,
    'sha256:' || encode(i.digest, 'hex') as content,
    i.media_type,
    i.size,
    i.created_at,
    count(u.item_id) as items,
    count(distinct u.owner) as owners
from images i
left join item_images u on u.tenant = i.tenant and u.digest = i.digest and u.removed_at is null
group by i.tenant, i.digest;
