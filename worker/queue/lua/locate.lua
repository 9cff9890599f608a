#!lua flags=no-writes
-- Tell what Redis knows of jobs. Arguments: prefix, job id...
-- Reply: per job {place, queue}. The place is 'absent', 'foreign' (its record is no hash), 'held' (an execution is alive)
-- or else RQ's status.

local reply = {}
for index = 2, #ARGV do
    local job_id = ARGV[index]
    local job = job_key(job_id)
    local kind = call('TYPE', job).ok
    if kind == 'none' then
        reply[#reply + 1] = {'absent', ''}
    elseif kind ~= 'hash' then
        reply[#reply + 1] = {'foreign', ''}
    else
        local fields = call('HMGET', job, 'status', 'origin')
        reply[#reply + 1] = {is_held(job_id) and 'held' or fields[1] or '', fields[2] or ''}
    end
end
return reply
