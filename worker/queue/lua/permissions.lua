#!lua flags=allow-oom
-- Ask the server's ACL what it would refuse this user on the queue's keys, without doing any of it.
-- Arguments: prefix, command... (a subcommand after a space). Reply: the commands that would be refused.

local refused = {}
for index = 2, #ARGV do
    local command, subcommand = ARGV[index]:match('^(%u+) ?(%u*)$')
    local allowed = true
    for _, key in ipairs({PREFIX .. ':any', 'pagemill:any'}) do
        local arguments = subcommand == '' and {key} or {subcommand, key}
        allowed = allowed and redis.acl_check_cmd(command, unpack(arguments))
    end
    if not allowed then
        refused[#refused + 1] = ARGV[index]
    end
end
return refused
