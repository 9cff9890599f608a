#!lua flags=allow-oom
-- Claim up to `limit` jobs, in the order of the queues and first in, first out within each.
-- Arguments: prefix, worker name, lease seconds, limit, token (unique per call), queue...
-- Reply: a list of records as taking.lua returns them.

local worker_name, lease, limit, token = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local MAX_POPPED = 10000 -- bounds one call's time when a queue holds only ids of deleted jobs

local taken = {}
if call('EXISTS', PREFIX .. ':suspended') == 1 then
    return taken
end
local popped = 0
for index = 6, #ARGV do
    local queue = ARGV[index]
    while #taken < limit and popped < MAX_POPPED do
        local job_id = call('LPOP', queue_key(queue))
        if not job_id then
            break
        end
        popped = popped + 1
        local record = take(queue, job_id, token .. string.format('%08x', popped), worker_name, lease)
        if record then
            taken[#taken + 1] = record
        end
    end
end
return taken
