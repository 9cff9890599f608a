#!lua
-- Put jobs at the end of a queue, each only if Redis has no record of it: a call may be repeated when its reply was lost.
-- Arguments: prefix, queue, number n, n texts that are the fields all records share (name, value, ...), then per job
-- id, tenant, data, description, enqueued at (as RQ writes dates), then of a job that ran before its epoch and the number
-- of its retries ('' for none), and when it is due (a Unix time; '' is now). One that is due later waits where RQ keeps
-- scheduled jobs. A full Redis refuses the call as a whole. Reply: per job 1, or 0 where its record was there already.

local queue, num_shared = ARGV[2], tonumber(ARGV[3])
local shared = {unpack(ARGV, 4, 3 + num_shared)}

local function create(job_id, tenant, data, description, enqueued_at, epoch, retries, due)
    local job = job_key(job_id)
    if call('EXISTS', job) == 1 then
        return 0
    end
    call('HSET', job, 'pagemill_tenant', tenant, 'data', data, 'description', description,
        'created_at', enqueued_at, 'enqueued_at', enqueued_at, unpack(shared))
    if epoch ~= '' then
        call('HSET', job, 'pagemill_epoch', epoch) -- the next claim's is above it, whatever this server's clock says
    end
    if retries ~= '' then
        call('HSET', job, 'pagemill_retries', retries)
    end
    if due ~= '' and tonumber(due) > NOW then
        call('HSET', job, 'status', 'scheduled')
        call('ZADD', scheduled_key(queue), due, job_id)
    else
        call('RPUSH', queue_key(queue), job_id)
    end
    return 1
end

call('SADD', PREFIX .. ':queues', queue_key(queue))
local reply = {}
for index = 4 + num_shared, #ARGV, 8 do
    reply[#reply + 1] = create(unpack(ARGV, index, index + 7))
end
return reply
