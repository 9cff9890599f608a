#!lua flags=allow-oom
-- Put members into a sorted set for some seconds. Arguments: prefix, key, seconds, member...
-- The set is read by marked.lua, which forgets what has run out.

for index = 4, #ARGV do
    call('ZADD', ARGV[2], NOW_US / 1000000 + tonumber(ARGV[3]), ARGV[index])
end
return #ARGV - 3
