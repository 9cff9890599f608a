#!lua flags=allow-oom
-- Release the leases of a worker that is dead. Its suspect duty ends.
-- Arguments: prefix, worker name, kind of its end, signal ('' is not known), 'all' or 'named', then, of the latter, the
-- executions that are suspects: id, output tokens ('' is not known). The other jobs go back to the heads of their queues.
-- Reply: {ids of jobs that wait again, ids of suspects}, each in the order of the claims.

local worker_name, kind, signal, whom = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local named = {}
for index = 6, #ARGV, 2 do
    named[ARGV[index]] = ARGV[index + 1]
end

local orphans = {}
for _, member in ipairs(call('SMEMBERS', PREFIX .. ':worker:' .. worker_name .. ':executions')) do
    local job_id, execution_id = member:match('^(.*):([^:]*)$')
    local fields = job_id and is_hash(job_key(job_id))
        and call('HMGET', job_key(job_id), 'pagemill_queue', 'pagemill_epoch', 'worker_name') or {}
    local queue = fields[1]
    if queue and fields[3] == worker_name and holds(queue, job_id, execution_id) then
        orphans[#orphans + 1] = {queue = queue, job_id = job_id, execution_id = execution_id,
            epoch = tonumber(fields[2]) or 0, output_tokens = tonumber(named[execution_id] or '')}
    end
end
table.sort(orphans, claimed_before)

local suspects, suspect_ids, waiting_ids = {}, {}, {}
for position = #orphans, 1, -1 do
    local orphan = orphans[position]
    drop_execution(orphan.queue, orphan.job_id, orphan.execution_id, worker_name)
    if whom == 'all' or named[orphan.execution_id] then
        table.insert(suspects, 1, orphan)
        table.insert(suspect_ids, 1, orphan.job_id)
    else
        put_back(orphan.queue, orphan.job_id)
        table.insert(waiting_ids, 1, orphan.job_id)
    end
end
for _, key in ipairs(call('SMEMBERS', PREFIX .. ':queues')) do
    local duty = duty_key(key:sub(#queue_key('') + 1))
    if call('GET', duty) == worker_name then
        call('DEL', duty)
    end
end
suspect(suspects, {worker = worker_name, kind = kind, signal = tonumber(signal)})
return {waiting_ids, suspect_ids}
