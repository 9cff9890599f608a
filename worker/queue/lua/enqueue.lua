#!lua
-- Put jobs at the end of a queue, each only if Redis has no record of it: a call may be repeated when its reply was lost.
-- Arguments: prefix, queue, number n, n texts that are the fields all records share (name, value, ...), then per job
-- id, tenant, data, description, enqueued at (as RQ writes dates), then of a job that ran before its epoch and the number
-- of its retries ('' for none), when it is due (a Unix time; '' is now), and the ids of the jobs that it waits for, joined
-- by spaces. One that is due later waits where RQ keeps scheduled jobs. One whose inputs have not all ended waits as a
-- dependent job of RQ's, which is released by the last of their ends, good or bad: what bad ones mean, its worker says.
-- A full Redis refuses the call as a whole. Reply: per job 1, or 0 where its record was there already.

local queue, num_shared = ARGV[2], tonumber(ARGV[3])
local shared = {unpack(ARGV, 4, 3 + num_shared)}

local function unended(inputs)
    local pending = {}
    for input in string.gmatch(inputs, '%S+') do
        local status = is_hash(job_key(input)) and call('HGET', job_key(input), 'status')
        if status and not TERMINAL[status] then
            pending[#pending + 1] = input
        end
    end
    return pending
end

local function defer(job_id, pending)
    local job = job_key(job_id)
    for _, input in ipairs(pending) do
        call('SADD', job_key(input) .. ':dependents', job_id)
        call('SADD', dependencies_key(job_id), input)
    end
    call('HSET', job, 'status', 'deferred', 'dependency_id', pending[1], 'dependency_ids', cjson.encode(pending),
        'allow_dependency_failures', '1')
    call('ZADD', PREFIX .. ':deferred:' .. queue, math.floor(NOW), job_id)
end

local function create(job_id, tenant, data, description, enqueued_at, epoch, retries, due, inputs)
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
    local pending = unended(inputs)
    if #pending > 0 then
        defer(job_id, pending)
    elseif due ~= '' and tonumber(due) > NOW then
        call('HSET', job, 'status', 'scheduled')
        call('ZADD', scheduled_key(queue), due, job_id)
    else
        call('RPUSH', queue_key(queue), job_id)
    end
    return 1
end

call('SADD', PREFIX .. ':queues', queue_key(queue))
local reply = {}
for index = 4 + num_shared, #ARGV, 9 do
    reply[#reply + 1] = create(unpack(ARGV, index, index + 8))
end
return reply
