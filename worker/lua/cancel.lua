#!lua flags=allow-oom
-- Cancel one job. Arguments: prefix, job id, seconds a request to a worker stays, TTL of a cancelled job.
-- Reply: {outcome, status before}; the outcome 'elsewhere' is a job that RQ keeps outside of its queues.

local job_id, request_seconds, default_ttl = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local job = job_key(job_id)
if not is_hash(job) then
    return {'unknown', ''}
end
local fields = call('HMGET', job, 'status', 'origin', 'pagemill_execution', 'pagemill_queue', 'failure_ttl')
local status = fields[1] or ''
if TERMINAL[status] then
    return {'not_cancellable', status}
end
local leased = fields[3] and fields[4] and call('ZSCORE', leases_key(fields[4]), job_id .. ':' .. fields[3])
if leased or status == 'started' then
    call('ZADD', 'pagemill:cancelling', NOW_US / 1000000 + request_seconds, job_id)
    return {'cancelling', status}
end
local queue = fields[2] or ''
if status == 'scheduled' and call('ZREM', scheduled_key(queue), job_id) == 1 then
    end_job(queue, job_id, 'canceled', 'canceled', read_ttl(fields[5], default_ttl))
    return {'cancelled_waiting', status}
end
if status ~= 'queued' and status ~= 'created' and status ~= '' then
    return {'elsewhere', status}
end
call('LREM', queue_key(queue), 0, job_id)
local tenant = tenant_of(job_id)
if tenant and call('LREM', parked_key(queue, tenant), 0, job_id) > 0
    and call('EXISTS', parked_key(queue, tenant)) == 0 then
    call('ZREM', parked_key(queue), tenant)
end
end_job(queue, job_id, 'canceled', 'canceled', read_ttl(fields[5], default_ttl))
return {'cancelled_waiting', status}
