-- From a crash to its suspects: inserted behind common.lua.
-- A suspect's record counts its crashes (`pagemill_crashes`) and tells of each in a line of JSON (`pagemill_crash_log`).
-- It waits in a group of `pagemill:suspects:<queue>`, and a worker runs a group with nothing else.
-- The first crash's n suspects form about sqrt(n) groups, those of a second crash go one by one, and a job that was
-- alone in a third is guilty. Halves would be sparing with groups, but take a crash for every halving: more than three.

local MAX_CRASHES = 3
local MAX_LOG_BYTES = 16384

-- The lines of a crash log, without those of one execution.
local function log_without(log, execution_id)
    local lines = {}
    for line in (log or ''):gmatch('[^\n]+') do
        local known, entry = pcall(cjson.decode, line)
        if not (known and type(entry) == 'table' and entry.execution_id == execution_id) then
            lines[#lines + 1] = line
        end
    end
    return table.concat(lines, '\n')
end

-- Count a crash against one job; returns how many it has.
local function count_crash(orphan, crash)
    local job = job_key(orphan.job_id)
    local fields = call('HMGET', job, 'pagemill_crashes', 'pagemill_crash_log')
    local crashes = tonumber(fields[1] or '') or 0
    if crashes >= MAX_CRASHES then
        return crashes -- guilty, and its crashes known: whoever was to dead-letter it has died
    end
    -- Only who was alone can be guilty; one more crash is of no weight for a job that was not.
    crashes = math.min(crashes + 1, crash.num_suspects == 1 and MAX_CRASHES or MAX_CRASHES - 1)
    crash.execution_id = orphan.execution_id
    local log = (fields[2] and fields[2] .. '\n' or '') .. cjson.encode(crash)
    call('HSET', job, 'pagemill_crashes', crashes)
    if #log <= MAX_LOG_BYTES then
        call('HSET', job, 'pagemill_crash_log', log)
    end
    return crashes
end

local function push_groups(queue, job_ids)
    local count = math.floor(math.sqrt(#job_ids) + 0.5)
    for group = 1, count do
        local first = math.floor((group - 1) * #job_ids / count) + 1
        local last = math.floor(group * #job_ids / count)
        call('RPUSH', suspects_key(queue), table.concat(job_ids, ' ', first, last))
    end
end

-- Make suspects of jobs whose leases were just dropped: {queue, job_id, execution_id}, in the order of their claims.
-- `crash` holds what is known of the worker's end: worker, kind, signal.
local function suspect(orphans, crash)
    crash.at = NOW_US / 1000000
    crash.num_suspects = #orphans
    local queues, first_time = {}, {}
    for position = #orphans, 1, -1 do
        local orphan = orphans[position]
        make_waiting(orphan.queue, orphan.job_id)
        if count_crash(orphan, crash) > 1 then
            call('LPUSH', suspects_key(orphan.queue), orphan.job_id)
        else
            if not first_time[orphan.queue] then
                first_time[orphan.queue] = {}
                queues[#queues + 1] = orphan.queue
            end
            table.insert(first_time[orphan.queue], 1, orphan.job_id)
        end
    end
    for _, queue in ipairs(queues) do
        push_groups(queue, first_time[queue])
    end
end

local function claimed_before(one, other)
    if one.epoch ~= other.epoch then
        return one.epoch < other.epoch
    end
    return one.execution_id < other.execution_id
end
