#!lua flags=allow-oom
-- Take the suspicion back that arose from leases of a worker that was silent, but lives. Arguments: prefix, then queue,
-- job id, execution id of each. One that waits as a suspect of no other crash goes back to the head of its queue.
-- Reply: per job 1 where a suspicion was taken back, 2 where it had led to a dead letter, else 0.

local function leave_group(queue, job_id)
    local group, index = group_of(queue, job_id)
    if not group then
        return false
    end
    local rest = {}
    for member in group:gmatch('%S+') do
        if member ~= job_id then
            rest[#rest + 1] = member
        end
    end
    call('LSET', suspects_key(queue), index, table.concat(rest, ' '))
    if #rest == 0 then
        call('LREM', suspects_key(queue), 1, '')
    end
    return true
end

local function absolve(queue, job_id, execution_id)
    local job = job_key(job_id)
    if not is_hash(job) then
        return 0
    end
    local fields = call('HMGET', job, 'pagemill_crashes', 'pagemill_crash_log', 'status')
    local log = log_without(fields[2], execution_id)
    if not fields[2] or log == fields[2] then
        return 0
    end
    local crashes = (tonumber(fields[1] or '') or 1) - 1
    if TERMINAL[fields[3]] then
        return fields[3] == 'failed' and crashes >= MAX_CRASHES - 1 and 2 or 0
    end
    if crashes > 0 then
        call('HSET', job, 'pagemill_crashes', crashes, 'pagemill_crash_log', log)
        return 1
    end
    call('HDEL', job, 'pagemill_crashes', 'pagemill_crash_log')
    if leave_group(queue, job_id) then
        put_back(queue, job_id)
    end
    return 1
end

local reply = {}
for index = 2, #ARGV, 3 do
    reply[#reply + 1] = absolve(ARGV[index], ARGV[index + 1], ARGV[index + 2])
end
return reply
