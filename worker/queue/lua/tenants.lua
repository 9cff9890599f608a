#!lua flags=no-writes
-- Return the tenants that have limits, slots or parked jobs, each as {tenant, limit as JSON or '', running jobs with a slot,
-- starts in the last minute that count, then queue and number of jobs of each list of parked ones}. Arguments: prefix.

local found, order = {}, {}

local function note(tenant)
    if not found[tenant] then
        found[tenant] = {}
        order[#order + 1] = tenant
    end
    return found[tenant]
end

-- The list is sorted, and may be long.
local function num_starts(tenant)
    local key = 'pagemill:starts:' .. tenant
    local low, high = 0, call('LLEN', key)
    local length = high
    while low < high do
        local middle = math.floor((low + high) / 2)
        if (tonumber(call('LINDEX', key, middle)) or 0) > NOW_US - MINUTE_US then
            high = middle
        else
            low = middle + 1
        end
    end
    return length - low
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
        table.insert(entry, queue)
        table.insert(entry, call('LLEN', parked_key(queue, tenant)))
    end
end

local reply = {}
for _, tenant in ipairs(order) do
    local running = call('ZCOUNT', running_key(tenant), string.format('(%.6f', NOW_US / 1000000), '+inf')
    reply[#reply + 1] = {tenant, call('HGET', 'pagemill:limits', tenant) or '', running, num_starts(tenant),
        unpack(found[tenant])}
end
return reply
