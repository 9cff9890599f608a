#!lua flags=allow-oom
-- Renew leases. Arguments: prefix, worker name, lease seconds, then queue, job id, execution id, epoch of each claim.
-- Reply: per claim 1, or 0 where the lease is gone.

local worker_name, lease = ARGV[2], tonumber(ARGV[3])
local now = now_utc()
local held = {}
for index = 4, #ARGV, 4 do
    local queue, job_id, execution_id, epoch = ARGV[index], ARGV[index + 1], ARGV[index + 2], ARGV[index + 3]
    if holds(queue, job_id, execution_id, epoch) then
        renew(queue, job_id, execution_id, worker_name, lease)
        call('HSET', job_key(job_id), 'last_heartbeat', now)
        held[#held + 1] = 1
    else
        drop_execution(queue, job_id, execution_id, worker_name)
        held[#held + 1] = 0
    end
end
return held
