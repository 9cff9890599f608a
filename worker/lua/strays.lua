#!lua flags=no-writes
-- Look through a part of the records for jobs that have started and that nobody holds. Arguments: prefix, cursor, count.
-- Reply: {next cursor ('0' at the end), {job id...}}.

local PATTERN = PREFIX .. ':job:'
local page = call('SCAN', ARGV[2], 'MATCH', PATTERN .. '*', 'COUNT', ARGV[3], 'TYPE', 'hash')
local found = {}
for _, key in ipairs(page[2]) do
    local job_id = key:sub(#PATTERN + 1)
    if call('HGET', key, 'status') == 'started' and not is_held(job_id) then
        found[#found + 1] = job_id
    end
end
return {page[1], found}
