#!lua flags=allow-oom
-- Return the tenants that have limits, slots or parked jobs, each as {tenant, limit as JSON or '', running jobs with a slot,
-- starts in the last minute that count, parked jobs, queue and number of each such list...}. Arguments: prefix.

local found, order = {}, {}

local function note(tenant)
    if not found[tenant] then
        found[tenant] = {total = 0, queues = {}}
        order[#order + 1] = tenant
    end
    return found[tenant]
end

for _, tenant in ipairs(call('HKEYS', 'pagemill:limits')) do
    note(tenant)
end
for _, tenant in ipairs(call('HVALS', 'pagemill:slots')) do
    note(tenant)
end
local first = #queue_key('') + 1
for _, key in ipairs(call('SMEMBERS', PREFIX .. ':queues')) do
    local queue = key:sub(first)
    for _, tenant in ipairs(call('ZRANGE', parked_key(queue), 0, -1)) do
        local entry = note(tenant)
        local length = call('LLEN', parked_key(queue, tenant))
        entry.total = entry.total + length
        table.insert(entry.queues, queue)
        table.insert(entry.queues, length)
    end
end

local reply = {}
for _, tenant in ipairs(order) do
    local starts = 0
    for _, at in ipairs(call('LRANGE', 'pagemill:starts:' .. tenant, 0, -1)) do
        starts = starts + (tonumber(at) > NOW_US - MINUTE_US and 1 or 0)
    end
    local running = call('ZCOUNT', running_key(tenant), string.format('(%.6f', NOW_US / 1000000), '+inf')
    reply[#reply + 1] = {tenant, call('HGET', 'pagemill:limits', tenant) or '', running, starts, found[tenant].total,
        unpack(found[tenant].queues)}
end
return reply
