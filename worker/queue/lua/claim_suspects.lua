#!lua flags=allow-oom
-- Claim the next group of suspects, whole: limits by tenant count its jobs, but do not divide it.
-- Arguments: prefix, worker name, lease seconds, token (unique per call), queue.
-- Reply: as of claim.lua; empty once no suspects are left.

local worker_name, lease, token, queue = ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

local taken = {}
if call('EXISTS', PREFIX .. ':suspended') == 1 or call('SISMEMBER', 'pagemill:paused', queue) == 1 then
    return taken
end
local limited = call('EXISTS', 'pagemill:limits') == 1
local popped = 0
while #taken == 0 do
    local group = call('LPOP', suspects_key(queue))
    if not group then
        break
    end
    for job_id in group:gmatch('%S+') do
        popped = popped + 1
        local can_run, record = examine(queue, job_id)
        if can_run then
            local execution_id = token .. string.format('%08x', popped)
            record = lease_out(queue, job_id, execution_id, worker_name, lease)
            local tenant = limited and tenant_of(job_id)
            if tenant then
                start(tenant, job_id .. ':' .. execution_id, lease)
            end
        end
        if record then
            taken[#taken + 1] = record
        end
    end
end
return taken
