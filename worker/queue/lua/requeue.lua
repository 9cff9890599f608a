#!lua flags=allow-oom
-- Hand jobs back to the head of their queues. Arguments: prefix, worker name, then queue, job id, execution id, epoch
-- of each claim, the youngest first. Reply: per claim 1, or 0 where the lease is gone.

local worker_name = ARGV[2]
local reply = {}
for index = 3, #ARGV, 4 do
    local queue, job_id, execution_id, epoch = ARGV[index], ARGV[index + 1], ARGV[index + 2], ARGV[index + 3]
    local held = holds(queue, job_id, execution_id, epoch)
    drop_execution(queue, job_id, execution_id, worker_name)
    if held then
        put_back(queue, job_id)
    end
    reply[#reply + 1] = held and 1 or 0
end
return reply
