#!lua flags=allow-oom
-- Put held jobs off: they wait out a back-off in RQ's registry of scheduled jobs. Arguments: prefix, worker name, TTL of
-- a cancelled job, then per job queue, job id, execution id, epoch, second when it is due, retries it has spent by now.
-- Reply: per job 0 where the lease is gone and nothing was written, 1 where it is delayed (now or by an earlier call
-- whose reply was lost), 2 where a rate limit's slot is to be freed besides, 3 where somebody had asked for the job to
-- be cancelled: it has ended so.

local worker_name, cancelled_ttl = ARGV[2], ARGV[3]

-- Count what was spent since the record was last told, on RQ's own count as well. The number is absolute: SQL has it.
local function spend(job, retries, started_at)
    local fields = call('HMGET', job, 'pagemill_retries', 'retries_left')
    local spent = retries - (tonumber(fields[1] or '') or 0)
    local left = tonumber(fields[2] or '')
    if left then
        call('HSET', job, 'retries_left', string.format('%.0f', math.max(0, left - spent)))
    end
    if spent > 0 then
        count_on_worker(worker_name, 'failed_job_count', started_at)
    end
    call('HSET', job, 'pagemill_retries', string.format('%.0f', retries))
end

local function delay(queue, job_id, execution_id, due, retries)
    local job = job_key(job_id)
    local started_at = call('HGET', PREFIX .. ':execution:' .. job_id .. ':' .. execution_id, 'created_at')
    drop_execution(queue, job_id, execution_id, worker_name)
    spend(job, retries, started_at)
    make_waiting(queue, job_id, 'scheduled')
    call('HSET', job, 'pagemill_delayed', execution_id)
    if call('ZSCORE', 'pagemill:cancelling', job_id) then
        end_job(queue, job_id, 'canceled', 'canceled', read_ttl(call('HGET', job, 'failure_ttl'), cancelled_ttl))
    elseif due <= NOW_US / 1000000 then
        enqueue(queue, job_id)
    else
        call('ZADD', scheduled_key(queue), due, job_id)
    end
end

local function outcome_of(job)
    local fields = call('HMGET', job, 'status', 'rate_limit_key')
    return fields[1] == 'canceled' and 3 or fields[2] and 2 or 1
end

local reply = {}
for index = 4, #ARGV, 6 do
    local queue, job_id, execution_id, epoch = ARGV[index], ARGV[index + 1], ARGV[index + 2], ARGV[index + 3]
    local job = job_key(job_id)
    local delayed = is_hash(job) and call('HGET', job, 'pagemill_delayed') == execution_id
    if not delayed and holds(queue, job_id, execution_id, epoch) then
        delay(queue, job_id, execution_id, tonumber(ARGV[index + 4]), tonumber(ARGV[index + 5]))
        delayed = true
    elseif not delayed then
        drop_execution(queue, job_id, execution_id, worker_name)
    end
    reply[#reply + 1] = delayed and outcome_of(job) or 0
end
return reply
