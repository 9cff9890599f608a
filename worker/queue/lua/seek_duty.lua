#!lua flags=allow-oom
-- Take the suspect duty of the first queue that has suspects and nobody on duty. Arguments: prefix, worker name,
-- seconds that the duty stands, queue... Reply: the queue, or nil. A worker that has the duty already gets it again.

local worker_name, seconds = ARGV[2], ARGV[3]
for index = 4, #ARGV do
    local queue = ARGV[index]
    if call('LLEN', suspects_key(queue)) > 0 and call('SISMEMBER', 'pagemill:paused', queue) == 0 then
        local holder = call('GET', duty_key(queue))
        if not holder or holder == worker_name then
            call('SET', duty_key(queue), worker_name, 'EX', seconds)
            return queue
        end
    end
end
return nil
