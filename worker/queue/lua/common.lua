-- What every script shares: inserted behind its first line. RQ's key prefix is always the first argument.
-- A job's record is RQ's hash `<prefix>:job:<id>`. A lease is a member "job_id:execution_id" of the sorted set
-- `pagemill:leases:<queue>`, scored by its end in seconds; the record names the one execution that may hold it.
-- RQ's own `wip` set shows the same members, but with scores far ahead: its readers fail what they find expired there.

local PREFIX = ARGV[1]
local RQ_GRACE_SECONDS = 31536000
local EXECUTION_GRACE_SECONDS = 60
local MAX_TTL_SECONDS = 2147483647
local TERMINAL = {finished = true, failed = true, canceled = true, stopped = true}

local call = redis.call
local clock = call('TIME')
local NOW = tonumber(clock[1])
local NOW_US = NOW * 1000000 + tonumber(clock[2])
local NOW_TEXT = string.format('%d.%06d', clock[1], clock[2])

local function job_key(job_id)
    return PREFIX .. ':job:' .. job_id
end

-- RQ writes two colons here.
local function dependencies_key(job_id)
    return PREFIX .. ':job::' .. job_id .. ':dependencies'
end

local function queue_key(queue)
    return PREFIX .. ':queue:' .. queue
end

local function scheduled_key(queue)
    return PREFIX .. ':scheduled:' .. queue -- RQ's registry of delayed jobs, scored by the second they are due
end

local function leases_key(queue)
    return 'pagemill:leases:' .. queue
end

-- A list of groups of job ids: the suspects of a crash, which wait apart from their queue. See suspecting.lua.
local function suspects_key(queue)
    return 'pagemill:suspects:' .. queue
end

-- Names the worker that runs a queue's suspects: one at a time, so that the others go on.
local function duty_key(queue)
    return 'pagemill:duty:' .. queue
end

local function is_hash(key)
    return call('TYPE', key).ok == 'hash'
end

-- The list of a tenant's jobs that wait for its limit, or the set of the tenants that have one.
local function parked_key(queue, tenant)
    return 'pagemill:parked:' .. queue .. (tenant and ':' .. tenant or '')
end

-- The tenant that a record names beside its payload; nil where it names none, or what no tenant can be called.
local function tenant_of(job_id)
    local tenant = is_hash(job_key(job_id)) and call('HGET', job_key(job_id), 'pagemill_tenant')
    return tenant and #tenant <= 128 and tenant:match('^[A-Za-z0-9][A-Za-z0-9._:-]*$') or nil
end

-- Free a key that one job needs for itself of whatever else it may hold: that would stop the script halfway.
local function make_room(key, kind)
    local found = call('TYPE', key).ok
    if found ~= kind and found ~= 'none' then
        call('DEL', key)
    end
end

-- Now as RQ writes dates: 2026-01-31T23:59:59.123456Z
local function now_utc()
    local function days_of(year)
        local leap = year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)
        return leap and 366 or 365
    end
    local year, day, second = 1970, math.floor(NOW / 86400), NOW % 86400
    while day >= days_of(year) do
        day = day - days_of(year)
        year = year + 1
    end
    local lengths = {31, days_of(year) - 337, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}
    local month = 1
    while day >= lengths[month] do
        day = day - lengths[month]
        month = month + 1
    end
    return string.format('%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, day + 1,
        math.floor(second / 3600), math.floor(second / 60) % 60, second % 60, tonumber(clock[2]))
end

-- A time to live in whole seconds from a record's field; `default` where the field is missing or no such number.
local function read_ttl(text, default)
    local ttl = tonumber(text or '')
    if not ttl or ttl ~= ttl or ttl < -1 or ttl > MAX_TTL_SECONDS then
        return tonumber(default)
    end
    return math.floor(ttl)
end

-- Lengthen a key's life, never shorten it.
local function live_at_least(key, seconds)
    local left = call('TTL', key)
    if left < seconds then
        call('EXPIRE', key, seconds)
    end
end

local function is_parked(queue, job_id)
    local tenant = tenant_of(job_id)
    return tenant and call('LPOS', parked_key(queue, tenant), job_id)
end

-- Slots: what counts against the number of jobs that a tenant may have running. `pagemill:slots` maps an execution
-- ("job_id:execution_id") to its tenant, whose set `pagemill:running:<tenant>` scores it by the end of its lease: a slot
-- counts for as long as its lease. Without limits there are none, and each script asks once.
local any_slots = nil

local function running_key(tenant)
    return 'pagemill:running:' .. tenant
end

local function slot_tenant(member)
    if any_slots == nil then
        any_slots = call('EXISTS', 'pagemill:slots') == 1
    end
    return any_slots and call('HGET', 'pagemill:slots', member)
end

local function occupy_slot(tenant, member, lease_end)
    any_slots = true
    call('HSET', 'pagemill:slots', member, tenant)
    call('ZADD', running_key(tenant), lease_end, member)
end

-- Write or renew everything that shows an execution is alive, for `lease` seconds from now.
local function renew(queue, job_id, execution_id, worker_name, lease)
    local member = job_id .. ':' .. execution_id
    local execution = PREFIX .. ':execution:' .. member
    local executions = PREFIX .. ':executions:' .. job_id
    local worker_executions = PREFIX .. ':worker:' .. worker_name .. ':executions'
    local seconds = math.ceil(lease) + EXECUTION_GRACE_SECONDS
    make_room(execution, 'hash')
    make_room(executions, 'zset')
    call('HSETNX', execution, 'created_at', NOW_TEXT)
    call('HSET', execution, 'id', execution_id, 'job_id', job_id, 'worker_name', worker_name,
        'last_heartbeat', NOW_TEXT)
    call('EXPIRE', execution, seconds)
    call('ZADD', executions, NOW + seconds, execution_id)
    call('EXPIRE', executions, seconds)
    call('ZADD', leases_key(queue), NOW_US / 1000000 + lease, member)
    call('ZADD', PREFIX .. ':wip:' .. queue, NOW + math.ceil(lease) + RQ_GRACE_SECONDS, member)
    call('SADD', worker_executions, member)
    live_at_least(worker_executions, seconds)
    local tenant = slot_tenant(member)
    if tenant then
        call('ZADD', running_key(tenant), NOW_US / 1000000 + lease, member)
    end
end

-- Remove every trace of an execution but the job's own record.
local function drop_execution(queue, job_id, execution_id, worker_name)
    local member = job_id .. ':' .. execution_id
    local execution = PREFIX .. ':execution:' .. member
    make_room(execution, 'hash')
    make_room(PREFIX .. ':executions:' .. job_id, 'zset')
    local owner = call('HGET', execution, 'worker_name') or worker_name
    call('DEL', execution)
    call('ZREM', PREFIX .. ':executions:' .. job_id, execution_id)
    call('ZREM', leases_key(queue), member)
    call('ZREM', PREFIX .. ':wip:' .. queue, member)
    call('SREM', PREFIX .. ':worker:' .. owner .. ':executions', member)
    local tenant = slot_tenant(member)
    if tenant then
        call('ZREM', running_key(tenant), member)
        call('HDEL', 'pagemill:slots', member)
    end
end

-- Tell whether the lease still stands: nobody cancelled, deleted, swept or claimed the job meanwhile.
local function holds(queue, job_id, execution_id, epoch)
    local member = job_id .. ':' .. execution_id
    if not call('ZSCORE', leases_key(queue), member) or not call('ZSCORE', PREFIX .. ':wip:' .. queue, member) then
        return false
    end
    if not is_hash(job_key(job_id)) then
        return false
    end
    local fields = call('HMGET', job_key(job_id), 'status', 'pagemill_execution', 'pagemill_epoch')
    return not TERMINAL[fields[1]] and fields[2] == execution_id and (not epoch or fields[3] == epoch)
end

-- Tell whether an execution of the job is alive: a lease of ours, or one of RQ's own workers.
local function is_held(job_id)
    local fields = call('HMGET', job_key(job_id), 'pagemill_execution', 'pagemill_queue')
    local leased = fields[1] and fields[2] and call('ZSCORE', leases_key(fields[2]), job_id .. ':' .. fields[1])
    return leased or call('EXISTS', PREFIX .. ':executions:' .. job_id) == 1
end

-- Return the group of suspects in which the job waits, and its index in the list; nil where there is none.
local function group_of(queue, job_id)
    for position, group in ipairs(call('LRANGE', suspects_key(queue), 0, -1)) do
        if (' ' .. group .. ' '):find(' ' .. job_id .. ' ', 1, true) then
            return group, position - 1
        end
    end
end

-- Make a held job's record that of one that waits, `status` saying where. `enqueued_at` stays: the wait began then.
local function make_waiting(queue, job_id, status)
    local job = job_key(job_id)
    call('HSET', job, 'status', status, 'worker_name', '', 'started_at', '')
    call('HDEL', job, 'pagemill_execution', 'pagemill_queue')
    local ttl = read_ttl(call('HGET', job, 'ttl'), 0)
    if ttl > 0 then
        call('EXPIRE', job, ttl)
    end
    call('SADD', PREFIX .. ':queues', queue_key(queue))
end

-- Put a job whose delay is over into its queue, as RQ's scheduler does. One that is retried keeps its `enqueued_at`, for
-- its wait began then, and goes to the head: it has had its turn. One that is suspected of a crash stays apart.
local function enqueue(queue, job_id)
    local job = job_key(job_id)
    local fields = call('HMGET', job, 'pagemill_retries', 'enqueue_at_front', 'enqueue_at_front_on_retry', 'ended_at', 'ttl')
    local ran_before = fields[4] and fields[4] ~= ''
    local at_front = fields[1] or fields[2] == '1' or (fields[3] == '1' and ran_before)
    call('HSET', job, 'status', 'queued', 'origin', queue)
    if not fields[1] then
        call('HSET', job, 'enqueued_at', now_utc())
    end
    local ttl = read_ttl(fields[5], 0)
    if ttl > 0 then
        call('EXPIRE', job, ttl)
    end
    call('SADD', PREFIX .. ':queues', queue_key(queue))
    if call('HEXISTS', job, 'pagemill_crashes') == 1 then
        call('LPUSH', suspects_key(queue), job_id)
    else
        call(at_front and 'LPUSH' or 'RPUSH', queue_key(queue), job_id)
    end
end

-- Give a held job back to the head of its queue, or of the jobs that were parked there after it was claimed. One that is
-- suspected of a crash stays apart, by itself.
local function put_back(queue, job_id)
    make_waiting(queue, job_id, 'queued')
    if call('HEXISTS', job_key(job_id), 'pagemill_crashes') == 1 then
        call('LPUSH', suspects_key(queue), job_id)
        return
    end
    local tenant = call('EXISTS', parked_key(queue)) == 1 and tenant_of(job_id)
    local others_are = tenant and call('EXISTS', parked_key(queue, tenant)) == 1
    call('LPUSH', others_are and parked_key(queue, tenant) or queue_key(queue), job_id)
end

-- End a job in one of RQ's registries; a negative `ttl` keeps it for ever.
local function end_job(queue, job_id, status, registry, ttl, result)
    local job = job_key(job_id)
    call('HSET', job, 'status', status, 'ended_at', now_utc())
    call('HDEL', job, 'pagemill_execution', 'pagemill_queue')
    call('ZREM', 'pagemill:cancelling', job_id)
    local score = ttl < 0 and '+inf' or NOW + ttl
    call('ZADD', PREFIX .. ':' .. registry .. ':' .. queue, score, job_id)
    local keys = {job, job .. ':dependents', dependencies_key(job_id)}
    if result then
        local stream = PREFIX .. ':results:' .. job_id
        make_room(stream, 'stream')
        call('XADD', stream, 'MAXLEN', '~', 10, '*', unpack(result))
        table.insert(keys, stream)
    end
    for _, key in ipairs(keys) do
        if ttl < 0 then
            call('PERSIST', key)
        else
            call('EXPIRE', key, ttl)
        end
    end
end

-- Count an ended job on its worker's record, if RQ knows the worker.
local function count_on_worker(worker_name, counter, started_at)
    local worker = PREFIX .. ':worker:' .. worker_name
    if call('EXISTS', worker) == 1 then
        call('HINCRBY', worker, counter, 1)
        local seconds = NOW_US / 1000000 - (tonumber(started_at or '') or NOW_US / 1000000)
        call('HINCRBYFLOAT', worker, 'total_working_time', string.format('%.6f', math.max(seconds, 0)))
    end
end
