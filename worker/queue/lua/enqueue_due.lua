#!lua flags=allow-oom
-- Move the delayed jobs that are due to their queues. Arguments: prefix, limit, queue...
-- Reply: {seconds until the next one is due ('' where none is delayed), {rate limit to fill...}, {job id moved...}}.
-- A job with a rate limit of RQ's waits for its slot first, which is RQ's to give.

local left = tonumber(ARGV[2])
local moved, limits = {}, {}

-- Let a job wait for its slot. A limit whose keys hold something else is none, and must not stop the script halfway.
local function wait_for_slot(job, job_id, limit, concurrency)
    local told = redis.pcall('HSET', PREFIX .. ':rl:' .. limit, 'concurrency', concurrency)
    local waits = redis.pcall('ZADD', PREFIX .. ':rl:' .. limit .. ':rate_limited', NOW, job_id)
    if type(told) == 'table' or type(waits) == 'table' then
        return false
    end
    call('SADD', PREFIX .. ':rl-keys', limit)
    call('HSET', job, 'status', 'rate_limited')
    limits[#limits + 1] = limit
    return true
end

local function move(queue, job_id)
    local job = job_key(job_id)
    local kind = call('TYPE', job).ok
    if kind == 'none' then
        return -- it expired or was deleted
    end
    if kind == 'hash' then
        local fields = call('HMGET', job, 'status', 'rate_limit_key', 'rate_limit_concurrency')
        if TERMINAL[fields[1]] or fields[1] == 'started' then
            return -- it did not wait for its time
        end
        local concurrency = fields[2] and (fields[3] or ''):match('^[1-9]%d?%d?%d?%d?%d?%d?%d?%d?$')
        if not concurrency or not wait_for_slot(job, job_id, fields[2], concurrency) then
            enqueue(queue, job_id)
        end
    else
        call('RPUSH', queue_key(queue), job_id) -- a claim dead-letters it
    end
    moved[#moved + 1] = job_id
end

local next_due = nil
for index = 3, #ARGV do
    local queue = ARGV[index]
    local key = scheduled_key(queue)
    local due = left > 0 and call('ZRANGEBYSCORE', key, '-inf', NOW_US / 1000000, 'LIMIT', 0, left) or {}
    for _, job_id in ipairs(due) do
        call('ZREM', key, job_id)
        move(queue, job_id)
    end
    left = left - #due
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    local score = tonumber(first or '')
    if score and (not next_due or score < next_due) then
        next_due = score
    end
end
local seconds = next_due and math.max(0, next_due - NOW_US / 1000000)
return {seconds and seconds < math.huge and string.format('%.6f', seconds) or '', limits, moved}
