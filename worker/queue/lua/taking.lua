-- What claims share: inserted behind common.lua. From a job's id that was popped to a record of the claim's reply:
-- {'claimed', job id, execution id, epoch, microseconds, queue, fields before the claim}, or
-- {'buried', job id, queue, reason, raw}: what cannot carry a lease is dead-lettered at once.

local MAX_ID_BYTES = 128
local MAX_DUMP_BYTES = 65536
local MAX_RECORD_BYTES = 8388608 -- a valid one has at most the data of the largest payload, and little else
local MAX_FIELDS = 256

local function hex(bytes)
    return (bytes:gsub('.', function(byte) return string.format('%02x', byte:byte()) end))
end

local function bytes_of(key)
    return call('MEMORY', 'USAGE', key, 'SAMPLES', MAX_FIELDS)
end

local function bury(queue, job_id, kind, reason)
    local entry = {job_id_hex = hex(job_id:sub(1, 1024)), type = kind, bytes = bytes_of(job_key(job_id))}
    local dump = entry.bytes <= MAX_RECORD_BYTES and call('DUMP', job_key(job_id))
    if dump and #dump <= MAX_DUMP_BYTES then
        entry.dump_hex = hex(dump)
    end
    local raw = cjson.encode(entry)
    call('LPUSH', 'pagemill:dead:' .. queue, raw)
    return raw
end

local function leased(job_id, execution_id, queue)
    return execution_id and queue and call('ZSCORE', leases_key(queue), job_id .. ':' .. execution_id)
end

-- Tell whether a job that was popped can run. If not, the second value is a record for the reply, or nil where there is
-- nothing to tell of.
local function examine(queue, job_id)
    local job = job_key(job_id)
    local kind = call('TYPE', job).ok
    if kind == 'none' then
        return false -- expired or deleted: RQ drops such ids as well
    end
    if #job_id > MAX_ID_BYTES or not job_id:match('^[A-Za-z0-9_-]+$') then
        local raw = bury(queue, job_id, kind)
        return false, {'buried', 'invalid-' .. redis.sha1hex(job_id), queue,
            'its id is not letters, digits, _ and -', raw}
    end
    if kind ~= 'hash' then
        local raw = bury(queue, job_id, kind)
        return false, {'buried', job_id, queue, 'its record is a ' .. kind .. ', not a hash', raw}
    end
    if call('HLEN', job) > MAX_FIELDS or bytes_of(job) > MAX_RECORD_BYTES then
        local raw = bury(queue, job_id, kind)
        local reason = 'its record has more than ' .. MAX_FIELDS .. ' fields or ' .. MAX_RECORD_BYTES .. ' bytes'
        return false, {'buried', job_id, queue, reason, raw}
    end
    local state = call('HMGET', job, 'status', 'pagemill_execution', 'pagemill_queue')
    if TERMINAL[state[1]] or leased(job_id, state[2], state[3]) then
        return false -- a second delivery of a job that has ended or is held
    end
    return true
end

local function lease_out(queue, job_id, execution_id, worker_name, lease)
    local job = job_key(job_id)
    local previous = tonumber(call('HGET', job, 'pagemill_epoch') or '') or 0
    if previous ~= previous or previous < 0 or previous > 2 ^ 53 - 2 then
        previous = 0
    end
    local epoch = string.format('%.0f', math.max(previous + 1, NOW_US))
    local fields = call('HGETALL', job)
    local now = now_utc()
    call('HSET', job, 'status', 'started', 'worker_name', worker_name, 'started_at', now, 'last_heartbeat', now,
        'pagemill_epoch', epoch, 'pagemill_execution', execution_id, 'pagemill_queue', queue)
    call('PERSIST', job)
    renew(queue, job_id, execution_id, worker_name, lease)
    return {'claimed', job_id, execution_id, epoch, string.format('%.0f', NOW_US), queue, fields}
end

-- Lease one job that came out of its queue: whatever its record says, it is no suspect.
local function take(queue, job_id, execution_id, worker_name, lease)
    local can_run, record = examine(queue, job_id)
    if not can_run then
        return record
    end
    call('HDEL', job_key(job_id), 'pagemill_crashes', 'pagemill_crash_log')
    return lease_out(queue, job_id, execution_id, worker_name, lease)
end
