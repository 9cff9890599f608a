#!lua flags=allow-oom
-- Put the jobs whose leases ran out back at the head of their queues. Arguments: prefix, limit, queue...
-- Reply: their ids, in the order in which they had been claimed.

local left = tonumber(ARGV[2])
local swept = {}

local function claimed_before(one, other)
    if one.epoch ~= other.epoch then
        return one.epoch < other.epoch
    end
    return one.execution_id < other.execution_id
end

for index = 3, #ARGV do
    local queue = ARGV[index]
    local orphans = {}
    local expired = left > 0
        and call('ZRANGEBYSCORE', leases_key(queue), '-inf', NOW_US / 1000000, 'LIMIT', 0, left) or {}
    for _, member in ipairs(expired) do
        local job_id, execution_id = member:match('^(.*):([^:]*)$')
        local held = holds(queue, job_id, execution_id)
        local fields = held and call('HMGET', job_key(job_id), 'worker_name', 'pagemill_epoch') or {}
        drop_execution(queue, job_id, execution_id, fields[1] or '')
        if held then
            orphans[#orphans + 1] = {job_id = job_id, execution_id = execution_id, epoch = tonumber(fields[2]) or 0}
        end
    end
    table.sort(orphans, claimed_before)
    for position = #orphans, 1, -1 do
        put_back(queue, orphans[position].job_id)
    end
    for _, orphan in ipairs(orphans) do
        swept[#swept + 1] = orphan.job_id
    end
    left = left - #expired
end
return swept
