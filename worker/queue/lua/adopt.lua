#!lua flags=allow-oom
-- Put jobs that have got lost inside Redis back at the heads of their queues: nobody holds them, and no list has them.
-- Arguments: prefix, job id... To be called with few ids: searching a list takes as long as it is long.
-- Reply: the ids that were put back.

local reply = {}
for index = 2, #ARGV do
    local job_id = ARGV[index]
    local job = job_key(job_id)
    local fields = is_hash(job) and call('HMGET', job, 'status', 'origin') or {}
    local queue = fields[2]
    local is_adrift = (fields[1] == 'queued' or fields[1] == 'started') and queue and queue ~= ''
    local is_listed = is_adrift
        and (call('LPOS', queue_key(queue), job_id) or is_parked(queue, job_id) or group_of(queue, job_id))
    if is_adrift and not is_listed and not is_held(job_id) then
        put_back(queue, job_id)
        reply[#reply + 1] = job_id
    end
end
return reply
