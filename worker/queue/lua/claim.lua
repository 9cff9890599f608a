#!lua flags=allow-oom
-- Claim up to `limit` jobs, first in, first out within each queue. The first queue with jobs is served, but of so many
-- claims as `turn` says one goes to the queue that was passed over most often; a turn of 0 serves strictly in order.
-- Paused queues are passed by; jobs whose tenant is at its limit are parked.
-- Arguments: prefix, worker name, lease seconds, limit, token (unique per call), turn, queue...
-- Reply: a list of records as taking.lua returns them; 'untold' instead of 'claimed' is a job that does not name its
-- tenant while there are limits: tell.lua must hear it before the job is run.

local worker_name, lease, limit, token, turn = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6])
local MAX_POPPED = 10000 -- bounds one call's time when a queue holds only ids of deleted jobs
local MAX_PARKED = 1000 -- the same for jobs above a limit
local TURNS_SECONDS = 86400 -- workers that claim nothing for so long begin anew

local popped, num_parked = 0, 0
local limited, has_parked = false, false

local function open_queues()
    local names = {}
    for index = 7, #ARGV do
        names[#names + 1] = ARGV[index]
    end
    local paused = call('SMISMEMBER', 'pagemill:paused', unpack(names))
    local parked_keys = {}
    for index, name in ipairs(names) do
        parked_keys[index] = parked_key(name)
    end
    limited = call('EXISTS', 'pagemill:limits') == 1
    has_parked = call('EXISTS', unpack(parked_keys)) > 0
    local queues = {}
    for index, name in ipairs(names) do
        if paused[index] == 0 then
            local tenants = has_parked and parked_tenants(name) or {}
            local waiting = call('LLEN', queue_key(name))
            queues[#queues + 1] = {name = name, place = index, waiting = waiting, tenants = tenants,
                is_cut = #tenants == MAX_TENANTS}
        end
    end
    return queues
end

local function is_waiting(queue)
    return queue.waiting > 0 or #queue.tenants > 0
end

-- Give a job that left its queue a lease, and count it for its tenant.
local function claim(queue, job_id, tenant)
    popped = popped + 1
    local execution_id = token .. string.format('%08x', popped)
    local record = take(queue.name, job_id, execution_id, worker_name, lease)
    if record and record[1] == 'claimed' and limited then
        if tenant then
            start(tenant, job_id .. ':' .. execution_id, lease)
        else
            record[1] = 'untold'
        end
    end
    return record
end

local function next_parked(queue)
    while #queue.tenants > 0 do
        local tenant = table.remove(queue.tenants, 1)
        if may_start(tenant) then
            local job_id = unpark(queue.name, tenant)
            look_later(queue.name, tenant)
            if job_id then
                table.insert(queue.tenants, tenant)
                local record = claim(queue, job_id, tenant)
                if record or popped >= MAX_POPPED then
                    return record
                end
            end
        elseif queue.is_cut then
            look_later(queue.name, tenant)
        end
    end
end

local function next_waiting(queue)
    while queue.waiting > 0 and popped < MAX_POPPED and num_parked < MAX_PARKED do
        local job_id = call('LPOP', queue_key(queue.name))
        queue.waiting = queue.waiting - 1
        local tenant = (limited or has_parked) and tenant_of(job_id)
        if tenant and must_wait(queue.name, tenant) then
            park(queue.name, tenant, job_id)
            num_parked = num_parked + 1
        else
            local record = claim(queue, job_id, tenant)
            if record then
                return record
            end
        end
    end
end

-- Whose turn it is, for all workers with this list of queues: the claims since the last turn, and for each queue those
-- that passed it over while it had jobs.
local turns_key = 'pagemill:turns:' .. redis.sha1hex(table.concat(ARGV, ',', 7))

local function read_turns()
    local numbers = {}
    for number in (call('GET', turns_key) or ''):gmatch('%d+') do
        numbers[#numbers + 1] = tonumber(number)
    end
    local turns = {since = table.remove(numbers, 1) or 0, passed_over = numbers}
    for place = 1, #ARGV - 6 do
        numbers[place] = numbers[place] or 0
    end
    return turns
end

local function next_queue(waiting, turns)
    local chosen = waiting[1]
    if turns.since >= turn - 1 then
        for _, queue in ipairs(waiting) do
            if turns.passed_over[queue.place] > turns.passed_over[chosen.place] then
                chosen = queue
            end
        end
    end
    return chosen
end

local function note_served(served, waiting, turns)
    turns.since = served == waiting[1] and turns.since + 1 or 0
    for _, queue in ipairs(waiting) do
        turns.passed_over[queue.place] = queue ~= served and turns.passed_over[queue.place] + 1 or 0
    end
end

local function with_jobs(queues)
    local waiting = {}
    for _, queue in ipairs(queues) do
        if is_waiting(queue) then
            waiting[#waiting + 1] = queue
        end
    end
    return waiting
end

local taken = {}
if call('EXISTS', PREFIX .. ':suspended') == 1 then
    return taken
end
local queues = open_queues()
local turns
while #taken < limit and popped < MAX_POPPED and num_parked < MAX_PARKED do
    local waiting = with_jobs(queues)
    if #waiting == 0 then
        break
    end
    local is_contested = turn > 0 and #waiting > 1
    if is_contested and not turns then
        turns = read_turns()
    end
    local queue = is_contested and next_queue(waiting, turns) or waiting[1]
    local record = next_parked(queue) or next_waiting(queue)
    if record then
        taken[#taken + 1] = record
        if is_contested then
            note_served(queue, waiting, turns)
        end
    end
end
if turns then
    call('SET', turns_key, turns.since .. ',' .. table.concat(turns.passed_over, ','), 'EX', TURNS_SECONDS)
end
return taken
