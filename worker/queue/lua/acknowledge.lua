#!lua flags=allow-oom
-- End jobs. Arguments: prefix, worker name, default result TTL, default failure TTL, then per job
-- queue, job id, execution id, epoch, state (done, failed, cancelled), return value, error (encoded as RQ does; '' is none).
-- Reply: per job 0 where the lease is gone and nothing was written, 1 where it ended (now or by an earlier call
-- whose reply was lost), 2 where others wait for its end besides.

local worker_name, default_result_ttl, default_failure_ttl = ARGV[2], ARGV[3], ARGV[4]
local KEEP_SECONDS = 60 -- a job with result_ttl 0 stays this long, so that a repeated call recognises it
local RESULT_TYPE = {done = '1', failed = '2'} -- numbers of rq.results.Result.Type

local function waited_for(job)
    return call('EXISTS', job .. ':dependents') == 1 or call('HEXISTS', job, 'rate_limit_key') == 1
end

local function result_of(state, execution_id, started_at, return_value, error_text)
    local result = {'type', RESULT_TYPE[state], 'worker_name', worker_name, 'execution_id', execution_id,
        'execution_ended_at', NOW_TEXT}
    local optional = {execution_started_at = started_at, return_value = return_value, exc_string = error_text}
    for name, value in pairs(optional) do
        if value and value ~= '' then
            result[#result + 1] = name
            result[#result + 1] = value
        end
    end
    return result
end

local function write_end(queue, job_id, execution_id, state, return_value, error_text)
    local job = job_key(job_id)
    local started_at = call('HGET', PREFIX .. ':execution:' .. job_id .. ':' .. execution_id, 'created_at')
    call('HSET', job, 'pagemill_acknowledged', execution_id)
    drop_execution(queue, job_id, execution_id, worker_name)
    local failure_ttl = read_ttl(call('HGET', job, 'failure_ttl'), default_failure_ttl)
    if state == 'cancelled' then
        end_job(queue, job_id, 'canceled', 'canceled', failure_ttl)
        return
    end
    local result = result_of(state, execution_id, started_at, return_value, error_text)
    if state == 'failed' then
        end_job(queue, job_id, 'failed', 'failed', failure_ttl, result)
        count_on_worker(worker_name, 'failed_job_count', started_at)
        return
    end
    local result_ttl = read_ttl(call('HGET', job, 'result_ttl'), default_result_ttl)
    if result_ttl == 0 then
        end_job(queue, job_id, 'finished', 'finished', KEEP_SECONDS)
        call('ZREM', PREFIX .. ':finished:' .. queue, job_id)
    else
        end_job(queue, job_id, 'finished', 'finished', result_ttl, result)
    end
    count_on_worker(worker_name, 'successful_job_count', started_at)
end

local reply = {}
for index = 5, #ARGV, 7 do
    local queue, job_id, execution_id, epoch = ARGV[index], ARGV[index + 1], ARGV[index + 2], ARGV[index + 3]
    local job = job_key(job_id)
    local ended = is_hash(job) and call('HGET', job, 'pagemill_acknowledged') == execution_id
    if not ended and holds(queue, job_id, execution_id, epoch) then
        write_end(queue, job_id, execution_id, ARGV[index + 4], ARGV[index + 5], ARGV[index + 6])
        ended = true
    elseif not ended then
        drop_execution(queue, job_id, execution_id, worker_name)
    end
    reply[#reply + 1] = not ended and 0 or waited_for(job) and 2 or 1
end
return reply
