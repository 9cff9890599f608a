-- From a crash to its suspects: inserted behind common.lua.
-- A suspect's record counts its crashes (`pagemill_crashes`) and tells of each in a line of JSON (`pagemill_crash_log`).
-- It waits in a group of `pagemill:suspects:<queue>`, and a worker runs a group with nothing else.
-- The first crash's n suspects form about sqrt(n) groups, those of a second crash go one by one, and a job that was
-- alone in a third is guilty. Halves would be sparing with groups, but take a crash for every halving: more than three.
-- Workers that are killed from outside die at any moment, a job that kills its worker does so at one place. So the third
-- crash convicts only where it met the job with as many output tokens as the one before; a sixth does in any case.

local MAX_CRASHES = 3
local MAX_UNLIKE_CRASHES = 6
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

-- Tell whether a crash repeats the last one of a log, as far as is known.
local function repeats(log, crash)
    local known, last = pcall(cjson.decode, log:match('[^\n]*$'))
    local before = known and type(last) == 'table' and tonumber(last.output_tokens)
    return not before or not crash.output_tokens or before == crash.output_tokens
end

local function convicts(log, crash)
    local _, num_breaks = log:gsub('\n', '')
    return crash.num_suspects == 1 and (repeats(log, crash) or num_breaks + 2 >= MAX_UNLIKE_CRASHES)
end

-- Count a crash against one job; returns how many it has.
local function count_crash(orphan, crash)
    local job = job_key(orphan.job_id)
    local fields = call('HMGET', job, 'pagemill_crashes', 'pagemill_crash_log')
    local crashes = tonumber(fields[1] or '') or 0
    if crashes >= MAX_CRASHES then
        return crashes -- guilty, and its crashes known: whoever was to dead-letter it has died
    end
    crash.execution_id, crash.output_tokens = orphan.execution_id, orphan.output_tokens
    crashes = math.min(crashes + 1, convicts(fields[2] or '', crash) and MAX_CRASHES or MAX_CRASHES - 1)
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
        make_waiting(orphan.queue, orphan.job_id, 'queued')
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
