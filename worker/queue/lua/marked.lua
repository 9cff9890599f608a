#!lua flags=allow-oom
-- Return the members of a sorted set whose time has not run out. Arguments: prefix, key.

call('ZREMRANGEBYSCORE', ARGV[2], '-inf', NOW_US / 1000000)
return call('ZRANGE', ARGV[2], 0, -1)
