-- shut: a space is swept no more.
-- Guarantee: not while somebody has just announced a write to it.
-- KEYS: 1 spaces 2 open
-- ARGV: 1 space 2 ms for which nobody may have made or opened it
-- Returns: 1 shut, 0 left as it is
if redis.replicate_commands then redis.replicate_commands() end
local t = redis.call('TIME')
local now = tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
local since = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or '0')
if now - since < tonumber(ARGV[2]) then return 0 end
redis.call('SREM', KEYS[2], ARGV[1])
return 1
