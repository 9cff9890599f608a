#!lua flags=no-writes
-- Look through a part of the records for jobs that have started and that nobody holds. Arguments: prefix, cursor, count.
-- Reply: {next cursor ('0' at the end), {job id...}}. Only jobs that Pagemill has submitted or claimed: others may share
-- the server, and older versions of RQ leave no trace of who holds a job.

local PATTERN = PREFIX .. ':job:'
local page = call('SCAN', ARGV[2], 'MATCH', PATTERN .. '*', 'COUNT', ARGV[3], 'TYPE', 'hash')
local found = {}
for _, key in ipairs(page[2]) do
    local job_id = key:sub(#PATTERN + 1)
    local fields = call('HMGET', key, 'status', 'pagemill_tenant', 'pagemill_epoch')
    if fields[1] == 'started' and (fields[2] or fields[3]) and not is_held(job_id) then
        found[#found + 1] = job_id
    end
end
return {page[1], found}
