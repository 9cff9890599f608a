#!lua flags=allow-oom
-- Say whose jobs were claimed whose records did not tell: they start, or are parked where their tenant is at its limit.
-- Arguments: prefix, lease seconds, then queue, job id, execution id, epoch, tenant of each claim.
-- Reply: per claim 1, or 0 where it was given back or its lease is gone. A repeated call finds its work done, save that
-- it cannot know of what it gave back; `recover` does not return that.

local lease = tonumber(ARGV[2])

local function settle(queue, job_id, execution_id, tenant)
    call('HSET', job_key(job_id), 'pagemill_tenant', tenant)
    local member = job_id .. ':' .. execution_id
    if slot_tenant(member) then
        return 1
    end
    if must_wait(queue, tenant) then
        drop_execution(queue, job_id, execution_id, '')
        make_waiting(queue, job_id, 'queued')
        park(queue, tenant, job_id)
        return 0
    end
    start(tenant, member, lease)
    return 1
end

local reply = {}
for index = 3, #ARGV, 5 do
    local queue, job_id, execution_id, epoch = unpack(ARGV, index, index + 3)
    reply[#reply + 1] = holds(queue, job_id, execution_id, epoch)
        and settle(queue, job_id, execution_id, ARGV[index + 4]) or 0
end
return reply
