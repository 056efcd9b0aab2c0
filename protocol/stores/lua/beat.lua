-- beat: a start says that it lives.
-- Guarantee: a buried start's beat is refused for ever; the age counts by the server's clock.
-- KEYS: 1 workers 2 info 3 graves
-- ARGV: 1 start 2 info (JSON)
-- Returns: {'ok', server ms} or {'buried'}
if redis.replicate_commands then redis.replicate_commands() end
if redis.call('ZSCORE', KEYS[3], ARGV[1]) then return {'buried'} end
local t = redis.call('TIME')
local now = string.format('%d', tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000))
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return {'ok', now}
