#!lua flags=allow-oom
-- Return the jobs that this worker holds without knowing it: the reply of their claim was lost.
-- Arguments: prefix, worker name, known execution id...
-- Reply: as of claim.lua, but each record is a 'recovered' one, the time is now's, and the fields are those after the
-- claim, whose started_at has its time.

local worker_name = ARGV[2]
local known = {}
for index = 3, #ARGV do
    known[ARGV[index]] = true
end

local found = {}
local executions = PREFIX .. ':worker:' .. worker_name .. ':executions'
for _, member in ipairs(call('SMEMBERS', executions)) do
    local job_id, execution_id = member:match('^(.*):([^:]*)$')
    if job_id and job_id:match('^[A-Za-z0-9_-]+$') and not known[execution_id] then
        local job = job_key(job_id)
        local queue = is_hash(job) and call('HGET', job, 'pagemill_queue')
        if queue and holds(queue, job_id, execution_id) then
            local epoch = call('HGET', job, 'pagemill_epoch')
            found[#found + 1] = {'recovered', job_id, execution_id, epoch, string.format('%.0f', NOW_US), queue, call('HGETALL', job)}
        end
    end
end
table.sort(found, function(one, other)
    if one[4] ~= other[4] then
        return tonumber(one[4]) < tonumber(other[4])
    end
    return one[3] < other[3]
end)
return found
