#!lua flags=allow-oom
-- Cancel jobs. Arguments: prefix, seconds a request to a worker stays, TTL of a cancelled job, job id...
-- Reply: per job {outcome, status before}; the outcome 'elsewhere' is a job that RQ keeps outside of its queues.

local request_seconds, default_ttl = tonumber(ARGV[2]), ARGV[3]
local MAX_SEARCHED = 10000 -- ids in a queue; in a longer one the id stays, and a claim drops it

local function take_out(list, job_id)
    return call('LLEN', list) <= MAX_SEARCHED and call('LREM', list, 0, job_id) or 0
end

local function leave(queue, job_id)
    take_out(queue_key(queue), job_id)
    local tenant = tenant_of(job_id)
    local parked = tenant and parked_key(queue, tenant)
    if parked and take_out(parked, job_id) > 0 and call('EXISTS', parked) == 0 then
        call('ZREM', parked_key(queue), tenant)
    end
end

local function cancel(job_id)
    local job = job_key(job_id)
    if not is_hash(job) then
        return {'unknown', ''}
    end
    local fields = call('HMGET', job, 'status', 'origin', 'pagemill_execution', 'pagemill_queue', 'failure_ttl')
    local status, queue = fields[1] or '', fields[2] or ''
    if TERMINAL[status] then
        return {'not_cancellable', status}
    end
    local leased = fields[3] and fields[4] and call('ZSCORE', leases_key(fields[4]), job_id .. ':' .. fields[3])
    if leased or status == 'started' then
        call('ZADD', 'pagemill:cancelling', NOW_US / 1000000 + request_seconds, job_id)
        return {'cancelling', status}
    end
    local was_delayed = status == 'scheduled' and call('ZREM', scheduled_key(queue), job_id) == 1
    if not was_delayed then
        if status ~= 'queued' and status ~= 'created' and status ~= '' then
            return {'elsewhere', status}
        end
        leave(queue, job_id)
    end
    end_job(queue, job_id, 'canceled', 'canceled', read_ttl(fields[5], default_ttl))
    return {'cancelled_waiting', status}
end

local reply = {}
for index = 4, #ARGV do
    reply[#reply + 1] = cancel(ARGV[index])
end
return reply
