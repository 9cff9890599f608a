#!lua flags=allow-oom
-- Renew or end a suspect duty. Arguments: prefix, worker name, seconds that it stands (0 ends it), queue.
-- Reply: 1, or 0 where it is somebody else's.

local worker_name, seconds, queue = ARGV[2], ARGV[3], ARGV[4]
local holder = call('GET', duty_key(queue))
if holder and holder ~= worker_name then
    return 0
end
if seconds == '0' then
    call('DEL', duty_key(queue))
else
    call('SET', duty_key(queue), worker_name, 'EX', seconds)
end
return 1
