#!lua flags=allow-oom
-- Tell whether the queue is to be reconciled with SQL, and leave a marker that somebody does. Arguments: prefix, key,
-- seconds that the marker stays. It names the server's run: a server that was wiped, restarted or replaced has none, or
-- another's. Reply: 1 for the one caller that is to reconcile now, else 0.

local run_id = call('INFO', 'server'):match('run_id:(%x+)') or ''
if call('GET', ARGV[2]) == run_id then
    return 0
end
call('SET', ARGV[2], run_id, 'EX', ARGV[3])
return 1
