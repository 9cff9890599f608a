#!lua flags=allow-oom
-- Renew leases. Arguments: prefix, worker name, lease seconds, then queue, job id, execution id, epoch of each claim.
-- Reply: per claim 1, 0 where the lease is gone, or 2 where RQ's tools cancelled the job and nobody else has it: what
-- cannot be interrupted may run to its end, as with RQ's own worker.

local worker_name, lease = ARGV[2], tonumber(ARGV[3])
local now = now_utc()
local held = {}

local function cancelled_in_hand(job_id, execution_id)
    if not is_hash(job_key(job_id)) then
        return false
    end
    local fields = call('HMGET', job_key(job_id), 'status', 'pagemill_execution')
    return fields[1] == 'canceled' and fields[2] == execution_id
end

for index = 4, #ARGV, 4 do
    local queue, job_id, execution_id, epoch = ARGV[index], ARGV[index + 1], ARGV[index + 2], ARGV[index + 3]
    if holds(queue, job_id, execution_id, epoch) then
        renew(queue, job_id, execution_id, worker_name, lease)
        call('HSET', job_key(job_id), 'last_heartbeat', now)
        held[#held + 1] = 1
    elseif cancelled_in_hand(job_id, execution_id) then
        call('ZADD', leases_key(queue), 'XX', NOW_US / 1000000 + lease, job_id .. ':' .. execution_id)
        live_at_least(PREFIX .. ':execution:' .. job_id .. ':' .. execution_id, math.ceil(lease) + EXECUTION_GRACE_SECONDS)
        held[#held + 1] = 2
    else
        drop_execution(queue, job_id, execution_id, worker_name)
        held[#held + 1] = 0
    end
end
return held
