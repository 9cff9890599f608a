#!lua flags=allow-oom
-- Set or clear the limit of a tenant. Arguments: prefix, tenant (* is every one not named), the limit as JSON ('' is none).
-- What runs already counts against it, as far as the records tell whose it is. Reply: 1 where there was a limit before.

local tenant, text = ARGV[2], ARGV[3]

local function count_running(queue)
    local leases = call('ZRANGE', leases_key(queue), 0, -1, 'WITHSCORES')
    for index = 1, #leases, 2 do
        local member = leases[index]
        local owner = tenant_of(member:match('^(.*):[^:]*$') or '')
        if owner and limit_of(owner).max_running and not slot_tenant(member) then
            occupy_slot(owner, member, leases[index + 1])
        end
    end
end

local had_limit = call('HEXISTS', 'pagemill:limits', tenant)
if text == '' then
    call('HDEL', 'pagemill:limits', tenant)
    return had_limit
end
call('HSET', 'pagemill:limits', tenant, text)
local first = #queue_key('') + 1
for _, key in ipairs(call('SMEMBERS', PREFIX .. ':queues')) do
    count_running(key:sub(first))
end
return had_limit
