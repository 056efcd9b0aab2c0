-- retire: the consumer of a dead start is removed from its role's group, only when nothing is pending on it.
-- KEYS: 1 role stream
-- ARGV: 1 consumer
-- Returns: 1 removed (or was not there), 0 something is pending on it
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[1])
if groups.err or #groups == 0 then return 1 end
local pending = redis.pcall('XPENDING', KEYS[1], 'workers', '-', '+', 1, ARGV[1])
if pending.err then return 1 end -- the group is gone, and its consumers with it
if #pending > 0 then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], 'workers', ARGV[1])
return 1
