#!lua flags=allow-oom
-- Release the leases that ran out. Their workers are silent, dead or cut off; which, nobody knows, nor what they were
-- doing: all the jobs of such a worker are suspects. Arguments: prefix, limit, seconds that a lease stands
-- longer whose job would be found guilty, queue... Reply: the jobs' ids, by queue, in the order of their claims.

local left, patience = tonumber(ARGV[2]), tonumber(ARGV[3])
local now = NOW_US / 1000000

-- A worker that was cut off must have the time to come back: nobody could tell its silence from a third crash.
local function may_return(job_id, member, queue)
    local crashes = tonumber(call('HGET', job_key(job_id), 'pagemill_crashes') or '') or 0
    return crashes == MAX_CRASHES - 1 and tonumber(call('ZSCORE', leases_key(queue), member)) > now - patience
end

local orphans = {}
for index = 4, #ARGV do
    local queue = ARGV[index]
    local expired = left > 0 and call('ZRANGEBYSCORE', leases_key(queue), '-inf', now, 'LIMIT', 0, left) or {}
    for _, member in ipairs(expired) do
        local job_id, execution_id = member:match('^(.*):([^:]*)$')
        local held = job_id and holds(queue, job_id, execution_id)
        if not job_id then
            call('ZREM', leases_key(queue), member) -- no script writes such a one
        elseif not (held and may_return(job_id, member, queue)) then
            local fields = held and call('HMGET', job_key(job_id), 'worker_name', 'pagemill_epoch') or {}
            drop_execution(queue, job_id, execution_id, fields[1] or '')
            if held then
                orphans[#orphans + 1] = {queue = queue, job_id = job_id, execution_id = execution_id,
                    worker = fields[1] or '', epoch = tonumber(fields[2]) or 0}
            end
        end
    end
    left = left - #expired
end
table.sort(orphans, claimed_before)

local workers, of_worker, swept = {}, {}, {}
for _, orphan in ipairs(orphans) do
    if not of_worker[orphan.worker] then
        of_worker[orphan.worker] = {}
        workers[#workers + 1] = orphan.worker
    end
    table.insert(of_worker[orphan.worker], orphan)
    swept[#swept + 1] = orphan.job_id
end
for _, worker in ipairs(workers) do
    suspect(of_worker[worker], {worker = worker, kind = 'silence'})
end
return swept
