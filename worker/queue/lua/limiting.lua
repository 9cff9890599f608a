-- Limits by tenant: inserted behind common.lua, used only where there are any.
-- `pagemill:limits` maps a tenant, or * for all that it does not name, to JSON {max_running, per_minute}, either missing
-- where there is no such limit. A running job of a tenant with max_running has a slot (see common.lua); the times of a
-- tenant's latest starts, as many as per_minute, are in the list `pagemill:starts:<tenant>`.
-- Jobs above a limit are parked: they leave their queue for the list `pagemill:parked:<queue>:<tenant>`, in their order,
-- and stay queued for everybody who reads their records. `pagemill:parked:<queue>` scores the tenants that have such a
-- list by when they were last looked at. Claims look there first, so that parked jobs come back by themselves.

local MINUTE_US = 60000000
local MAX_TENANTS = 64 -- looked at per queue and call
local NO_LIMIT = {}
local limits = {}
local looks = 0

local function is_count(value)
    return value == nil or (type(value) == 'number' and value >= 1 and value % 1 == 0)
end

-- The limit of a tenant. One that cannot be read limits nothing.
local function limit_of(tenant)
    if not limits[tenant] then
        local text = call('HGET', 'pagemill:limits', tenant) or call('HGET', 'pagemill:limits', '*')
        local is_read, limit = pcall(cjson.decode, text or '')
        local is_sound = is_read and type(limit) == 'table' and is_count(limit.max_running) and is_count(limit.per_minute)
        limits[tenant] = is_sound and limit or NO_LIMIT
    end
    return limits[tenant]
end

local function may_start(tenant)
    local limit = limit_of(tenant)
    local now = string.format('(%.6f', NOW_US / 1000000)
    if limit.max_running and call('ZCOUNT', running_key(tenant), now, '+inf') >= limit.max_running then
        return false
    end
    local earliest = limit.per_minute and call('LINDEX', 'pagemill:starts:' .. tenant, -limit.per_minute)
    return (tonumber(earliest or '') or 0) <= NOW_US - MINUTE_US
end

-- Count one job of a tenant as started, its lease ending in `lease` seconds.
local function start(tenant, member, lease)
    local limit = limit_of(tenant)
    if limit.max_running then
        occupy_slot(tenant, member, NOW_US / 1000000 + lease)
    end
    if limit.per_minute then
        local starts = 'pagemill:starts:' .. tenant
        call('RPUSH', starts, string.format('%.0f', NOW_US))
        call('LTRIM', starts, -limit.per_minute, -1)
        call('PEXPIRE', starts, MINUTE_US / 1000)
    end
end

local function must_wait(queue, tenant)
    return call('EXISTS', parked_key(queue, tenant)) == 1 or not may_start(tenant)
end

local function park(queue, tenant, job_id)
    call('RPUSH', parked_key(queue, tenant), job_id)
    call('ZADD', parked_key(queue), 'NX', string.format('%.0f', NOW_US + looks), tenant)
end

-- The tenants with parked jobs of a queue, the one first that was looked at longest ago.
local function parked_tenants(queue)
    return call('ZRANGE', parked_key(queue), 0, MAX_TENANTS - 1)
end

-- Take the oldest parked job of a tenant out of its list; nil where there is none.
local function unpark(queue, tenant)
    local job_id = call('LPOP', parked_key(queue, tenant))
    if call('EXISTS', parked_key(queue, tenant)) == 0 then
        call('ZREM', parked_key(queue), tenant)
    end
    return job_id
end

-- Let the other tenants of a queue be looked at first.
local function look_later(queue, tenant)
    looks = looks + 1
    call('ZADD', parked_key(queue), 'XX', string.format('%.0f', NOW_US + looks), tenant)
end
