#!lua flags=allow-oom
-- Take records that are no prompt jobs out of circulation. Arguments: prefix, worker name, TTL seconds, then per record
-- queue, job id, raw, reason (encoded as RQ does). Only records that this worker holds are touched, so that a repeated
-- call does nothing. Reply: the number of records moved.

local worker_name, ttl = ARGV[2], tonumber(ARGV[3])
local moved = 0
for index = 4, #ARGV, 4 do
    local queue, job_id, raw, reason = ARGV[index], ARGV[index + 1], ARGV[index + 2], ARGV[index + 3]
    local job = job_key(job_id)
    local fields = is_hash(job) and call('HMGET', job, 'worker_name', 'pagemill_execution') or {}
    local execution_id = fields[2]
    if fields[1] == worker_name and execution_id and holds(queue, job_id, execution_id) then
        local started_at = call('HGET', PREFIX .. ':execution:' .. job_id .. ':' .. execution_id, 'created_at')
        drop_execution(queue, job_id, execution_id, worker_name)
        end_job(queue, job_id, 'failed', 'failed', ttl,
            {'type', '2', 'worker_name', worker_name, 'execution_id', execution_id, 'exc_string', reason})
        count_on_worker(worker_name, 'failed_job_count', started_at)
        call('LPUSH', 'pagemill:dead:' .. queue, raw)
        moved = moved + 1
    end
end
return moved
